"""A request to forget: recorded activations, and the mask they give."""
