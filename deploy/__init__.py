"""What runs Labsite: manifests, the container image, and the sandbox cluster."""
