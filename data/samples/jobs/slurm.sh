#!/bin/bash
# A Slurm array, one shard a task; what was killed or preempted goes on where it was:
#   sbatch data/samples/jobs/slurm.sh rows.jsonl runs/judge runs/judged
#   sbatch --array=3,17 data/samples/jobs/slurm.sh rows.jsonl runs/judge runs/judged    # these two again
#   sbatch --array=1-8 data/samples/jobs/slurm.sh rows.jsonl runs/judge runs/judged 8   # 8 shards, not 64: say both
#   critic merge runs/judged/part.*.jsonl --out runs/judged.jsonl    # when all have ended
#SBATCH --job-name=critic-judge
#SBATCH --array=1-64%16
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x.%A.%a.log
set -euo pipefail
rows=$1 judge=$2 out=$3 shards=${4:-64}
mkdir -p "$out"
srun critic judge "$rows" --judge "$judge" --shard "${SLURM_ARRAY_TASK_ID:-1}/$shards" \
  --out "$out/part.${SLURM_ARRAY_TASK_ID:-1}.jsonl"
