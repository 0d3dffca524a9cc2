"""What clients call: endpoints of chat, sentiment and images, and how errors reach them."""
