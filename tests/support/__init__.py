"""What several tests need: servers, cases, programs."""
