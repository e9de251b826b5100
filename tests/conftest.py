"""Settings that every test process needs before JAX starts: four CPU devices, and no accelerator."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "4"
