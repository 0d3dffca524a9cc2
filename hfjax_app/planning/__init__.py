"""Plan before you pay: whether models fit chips that are not here, and how fast they can be at best."""
