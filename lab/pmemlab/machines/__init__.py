"""Machines of three kinds behind one protocol."""
