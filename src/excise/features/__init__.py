"""Images to features; for now, features as a user brings them."""
