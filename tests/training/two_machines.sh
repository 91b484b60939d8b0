#!/usr/bin/env bash
# Two "machines" on one: network namespaces joined by a virtual cable, one torchrun agent in each,
# one run folder. A rank on the second is killed; both agents start their ranks again and the run
# ends. Needs root and `ip`: sudo tests/training/two_machines.sh FOLDER makes a run of the demo clips there.
set -euo pipefail
run=$(realpath -m "${1:?give a new folder for the run}")
python=${PYTHON:-python}
cd "$(dirname "$0")/.."
"$python" - "$run" <<'END'
import sys
from pathlib import Path
from trainer import Run, RunConfig
from trainer.core.run_config import DataConfig, TrainingConfig
demo = Path("assets/demo").absolute()
data = DataConfig(train_csv=str(demo / "train.csv"), eval_csv=str(demo / "eval.csv"))
training = TrainingConfig(
    steps=40, batch_size=4, num_processes=2, save_every="5 steps", preview_every="never",
    validate_every="never", device="cpu",
)
Run.create(sys.argv[1], RunConfig(data=data, training=training))
END
here=timbre$$
clean() {
    for side in a b; do
        for pid in $(ip netns pids "$here$side" 2>/dev/null); do kill -9 "$pid" || true; done
        ip netns del "$here$side" 2>/dev/null || true
    done
}
trap clean EXIT
ip netns add "${here}a"
ip netns add "${here}b"
ip link add "a$$" netns "${here}a" type veth peer name "b$$" netns "${here}b"
for side in a b; do
    address=10.200.0.$([ "$side" = a ] && echo 1 || echo 2)
    ip -n "$here$side" link set lo up
    ip -n "$here$side" addr add "$address/24" dev "$side$$"
    ip -n "$here$side" link set "$side$$" up
done
agent() {
    ip netns exec "$here$1" env GLOO_SOCKET_IFNAME="$1$$" "$python" -m torch.distributed.run \
        --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id timbre \
        --rdzv-endpoint 10.200.0.1:29500 --rdzv-conf "is_host=$2" --local-addr "10.200.0.$3" \
        --max-restarts 3 -m trainer resume "$run"
}
agent a 1 1 &
first=$!
agent b 0 2 &
second=$!
until grep -q '"type": "StepDone", "step": 8,' "$run/events.jsonl"; do
    kill -0 "$first" || { wait "$first"; exit 1; }
    sleep 0.2
done
victim=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$run/control/heartbeat-1")
echo "killing rank 1, process $victim"
kill -9 "$victim"
wait "$first" "$second"
grep -o '"type": "RunStarted", "first_step": [0-9]*' "$run/events.jsonl"
grep -o '"type": "RunFinished", "outcome": "[a-z]*"' "$run/events.jsonl" | tail -1
