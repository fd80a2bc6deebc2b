"""QEMU guests: the boot image, the agent, the proof's probe, and QEMU itself."""
