"""What an adapter spares beside whole weights: bytes and seconds of a step, a sync and a checkpoint."""
