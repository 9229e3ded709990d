"""The files of a release stay as that release wrote them."""

import hashlib

from .released import RELEASE

DIGEST = "5a35b069994fac9b3532d738577de7a27d840bd278a91cd730fac086c8d2d84a"


def test_the_files_of_0_1_0_are_never_regenerated_nor_edited() -> None:
    digest = hashlib.sha256()
    for path in sorted(path for path in RELEASE.rglob("*") if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(RELEASE).as_posix()} {content}\n".encode())
    assert digest.hexdigest() == DIGEST, "restore tests/compatibility/0.1.0: see released.py"
