"""The sidecar: sources -> points -> stop rules -> reporter. Importing this package imports nothing else."""
