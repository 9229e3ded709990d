#!/usr/bin/env bash
# Makes a Python environment with our packages: `environment.sh` makes .venv, with the pinned tools and libraries
# of tests/requirements.txt, and `environment.sh cuda` makes .venv-cuda, with what the CUDA image holds.
#
# Installing and compiling 100,000 files takes most of the time. It is done once for each set of requirements,
# below $XDG_CACHE_HOME/grpo-operator/environments (default ~/.cache); the environment of a checkout is made of
# hard links to that, or of copies where the cache is on another file system. Needs uv on the PATH: `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  "") folder=.venv requirements=tests/requirements.txt size="40 s, 6 GB" packages="-e crds -e operator -e runtime" ;;
  cuda) folder=.venv-cuda requirements=runtime/requirements-cuda.txt size="2 min, 9 GB" packages="-e crds -e runtime" ;;
  *) echo "environment.sh: $1 is unknown: none or cuda" >&2 && exit 2 ;;
esac
environments=${XDG_CACHE_HOME:-$HOME/.cache}/grpo-operator/environments
key=$(cat $requirements crds/requirements-build.txt runtime/name_vllm_cpu.py | sha256sum | cut --delimiter=' ' --fields=1)
environment=$environments/$key

build_environment() {
  echo "==> $environment (about $size)"
  uv venv --quiet --clear --relocatable --python 3.11 "$environment"
  # DeepSpeed is a source distribution and compiles nothing here; what builds its wheel is pinned, too
  uv pip install --quiet --python "$environment/bin/python" --no-deps --require-hashes --compile-bytecode \
    --build-constraints crds/requirements-build.txt --requirements $requirements
  if [ $folder = .venv ]; then "$environment/bin/python" runtime/name_vllm_cpu.py; fi
  # last, so that an environment whose making was interrupted is made again
  touch "$environment/complete"
}

remove_unused_environments() {
  touch "$environment"
  find "$environments" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf {} +
}

link_environment() {
  echo "==> $folder"
  rm -rf $folder
  cp --archive --link "$environment" $folder 2>/dev/null || { rm -rf $folder; cp --archive "$environment" $folder; }
}

mkdir -p "$environments"
# two checkouts may be set up at the same time
exec 9>"$environments/lock"
flock 9
test -e "$environment/complete" || build_environment
remove_unused_environments
link_environment
flock --unlock 9

uv pip install --quiet --python $folder/bin/python --no-deps --no-build-isolation $packages
