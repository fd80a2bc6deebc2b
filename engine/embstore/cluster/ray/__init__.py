"""What is asked of Ray."""
