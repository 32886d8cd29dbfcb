"""critic: train, serve, run and audit a local judge for vision-language models."""
