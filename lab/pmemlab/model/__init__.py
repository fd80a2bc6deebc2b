"""What this computer is, and what the lab says of devices: no machine runs here."""
