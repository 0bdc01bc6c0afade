#!/bin/bash
# Eight processes on two nodes under Slurm: sbatch slurm.sh
#
# Nothing here configures belady: each process finds its rank in srun's variables. Where the program
# initialises torch.distributed, the processes meet at its store; else they meet on the first node, with the
# key below (without one, in a directory of your home).
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
set -euo pipefail

# For init_process_group("nccl") with its default, env://.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

# A key for this job alone. srun hands the environment on to its tasks; no other user sees it.
BELADY_KEY=$(openssl rand -hex 32)
export BELADY_KEY

# The network on which samples travel; without it, the one by which the first node is reached. The
# processes meet at the first node's own name in either case.
# export BELADY_BIND=ib0

srun python train.py --data /scratch/imagenet/train --cache "ram:200GiB" "$TMPDIR:1TiB"
