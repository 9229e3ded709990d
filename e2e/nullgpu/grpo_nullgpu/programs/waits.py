"""What is read of an asynchronous copy with and without waiting for it. Prints whether it is there."""

import torch


def main() -> None:
    wanted = torch.arange(1 << 20, dtype=torch.int64).to(torch.uint8)
    on_gpu, pinned = wanted.cuda(), torch.zeros(1 << 20, dtype=torch.uint8).pin_memory()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        pinned.copy_(on_gpu, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    print("at once", torch.equal(pinned, wanted))
    torch.cuda.current_stream().wait_event(event)
    torch.cuda.current_stream().synchronize()
    print("behind its event", torch.equal(pinned, wanted))


if __name__ == "__main__":
    main()
