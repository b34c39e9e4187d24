"""Train a latent ODE on a data set and report: `run_models.py --dataset activity --ode morph`."""

from latent_morph.experiments.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
