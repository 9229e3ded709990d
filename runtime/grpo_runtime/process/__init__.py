"""What every process of ours needs: imports that stay, threads, the user's code in a worker, an end
together with its parent, and the cause of its end in a file.

No torch here, and nothing about what the processes do.
"""
