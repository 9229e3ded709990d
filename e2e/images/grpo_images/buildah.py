"""Calls buildah, which builds images as root without a daemon."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpo_cluster.console import run_logged
from grpo_cluster.settings import ClusterError, cache_dir

_SETTINGS_PREFIXES = ("UV_", "PIP_")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def buildah(*arguments: str) -> str:
    """Run buildah and return what it printed; raises ClusterError."""
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"buildah {shlex.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def has_image(tag: str) -> bool:
    """Whether `tag` is in buildah's storage."""
    found = subprocess.run(["buildah", "images", "--quiet", tag], capture_output=True, check=False)
    return found.returncode == 0


def image_tags(repository: str) -> list[str]:
    """Every tag of `repository` in buildah's storage, as full names."""
    listed = buildah("images", "--format", "{{.Name}}:{{.Tag}}")
    return [name for name in listed.split() if name.rpartition(":")[0] == repository]


def logged(command: Sequence[str | Path], *, log: str) -> None:
    """Run a long command with its output in a log file. Raises ClusterError with the path of the log."""
    run_logged(
        command,
        log=cache_dir() / "logs" / f"image-{log}.log",
        fix="Fix what the log reports and run the same command again: finished steps are cached.",
    )


@contextmanager
def package_secrets() -> Iterator[list[str]]:
    """`--secret` options that give a build this machine's package settings and store them in no layer."""
    bundle = Path(os.environ.get("SSL_CERT_FILE") or _CERTIFICATES)
    with tempfile.TemporaryDirectory(prefix="grpo-build-") as folder:
        exports = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_SETTINGS_PREFIXES) or name.lower().endswith("_proxy")
        }
        options = []
        if bundle.is_file():
            exports |= {
                name: "/run/secrets/ca" for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
            }
            options += ["--secret", f"id=ca,src={bundle}"]
        # These name folders of this machine, which do not exist inside the build.
        for name in (
            "UV_CACHE_DIR",
            "PIP_CACHE_DIR",
            "UV_PROJECT_ENVIRONMENT",
            "UV_PYTHON",
            "PIP_FIND_LINKS",
        ):
            exports.pop(name, None)
        settings = Path(folder) / "package-settings"
        settings.write_text(
            "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items())
        )
        yield [*options, "--secret", f"id=package-settings,src={settings}"]


def build(
    containerfile: Path,
    *,
    tag: str,
    arguments: Mapping[str, str],
    context: Path,
    log: str,
    pull: bool = False,
) -> None:
    """Build a Containerfile with its build arguments, without settings of this machine in the image.

    With `pull` a base that is missing is pulled from a registry; otherwise it must be in buildah's storage.
    """
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    with package_secrets() as secrets:
        logged(
            [
                "buildah", "bud", "--isolation", "chroot", "--network", "host",
                *([] if pull else ["--pull-never"]), *options, *secrets,
                "--tag", tag, "--file", containerfile, context,
            ],
            log=log,
        )  # fmt: skip
