#!/usr/bin/env bash
# Make a TPU VM, or bring the studio on one up to date. Run it on your own machine, in a checkout, with gcloud logged in.
#   deploy/tpu-vm.sh create NAME ZONE TYPE     e.g. create studio us-west4-a v5litepod-4
#   deploy/tpu-vm.sh update NAME ZONE          copies the checkout, builds the image, starts it again
#   deploy/tpu-vm.sh tunnel NAME ZONE          http://127.0.0.1:7860 until Ctrl-C
# Settings for the studio (HFJAX_*, HF_TOKEN) are read from the file deploy/studio.env where there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,6s/^# \{0,1\}//p' "deploy/${0##*/}" >&2; exit 2; }
[ $# -ge 3 ] || usage
command=$1 name=$2 zone=$3
vm() { gcloud compute tpus tpu-vm "$@"; }

case $command in
  create)
    [ $# -eq 4 ] || usage
    case $4 in
      v5litepod-[148]) image=v2-alpha-tpuv5-lite ;;
      v6e-[148]) image=v2-alpha-tpuv6e ;;
      *) echo "error: type $4: v5litepod-1, -4, -8 or v6e-1, -4, -8 (slices of one host)" >&2; exit 2 ;;
    esac
    vm create "$name" --zone "$zone" --accelerator-type "$4" --version "$image"
    ;;
  update)
    archive=$(mktemp)
    environment=$(mktemp)
    trap 'rm -f "$archive" "$environment"' EXIT
    git archive --format tar.gz HEAD >"$archive"
    if [ -f deploy/studio.env ]; then cp deploy/studio.env "$environment"; fi
    vm scp "$archive" "$name:studio.tar.gz" --zone "$zone"
    vm scp "$environment" "$name:studio.env" --zone "$zone"
    vm ssh "$name" --zone "$zone" --command '
      set -e
      chmod 600 studio.env
      rm -rf studio && mkdir studio && tar -xzf studio.tar.gz -C studio
      sudo docker build -f studio/deploy/Dockerfile.tpu -t hfjax studio
      sudo docker rm -f hfjax 2>/dev/null || true
      sudo docker run -d --name hfjax --restart unless-stopped --privileged --network host --ulimit memlock=-1 \
        --env-file studio.env -v hfjax-data:/data hfjax'
    ;;
  tunnel)
    port=$(sed -n 's/^HFJAX_PORT=//p' deploy/studio.env 2>/dev/null | tail -n 1) || true
    vm ssh "$name" --zone "$zone" -- -N -L "7860:127.0.0.1:${port:-7860}"
    ;;
  *) usage ;;
esac
