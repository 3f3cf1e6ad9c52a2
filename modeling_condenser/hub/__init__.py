"""The Hub: files fetched and checked, folders committed whole, and what went wrong in words."""
