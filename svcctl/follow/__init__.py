"""Following a cluster: what runs in the foreground, `svcctl follow` and `svcctl health`. Holds no state of its own."""
