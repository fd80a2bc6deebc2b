"""Machines of four kinds behind one protocol: process, host, guest and container."""
