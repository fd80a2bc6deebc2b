"""Everything about QEMU guests: boot image, agent, proof probe, the process itself."""
