"""Pages: thin callers that read rows. Only *open* asks the cluster, and it has its own time limit."""
