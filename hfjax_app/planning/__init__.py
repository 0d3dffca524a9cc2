"""Plans without the hardware: whether models fit given chips, and the lower bound of a decoding step's time."""
