"""Attention statistics by Triton kernels on CUDA and ROCm devices, without storing n x n weights.

Importing this package does not import triton; importing `launch` does. The kernels are compiled and simulated by the
tests, and have never been run on a GPU.
"""
