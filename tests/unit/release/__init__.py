"""What a release has, as far as it is made without a download."""
