"""Machines of four kinds with one interface: process, host, guest and container."""
