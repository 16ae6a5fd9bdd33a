"""What the benchmark of published sites starts and reads: web servers, a browser, a load generator."""
