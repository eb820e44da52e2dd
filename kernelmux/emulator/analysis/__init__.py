"""What is known of a function before it runs: control flow, live registers, where variables lie, wgmma in flight."""
