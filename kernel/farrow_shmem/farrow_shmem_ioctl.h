/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What /dev/farrow_shmem and its debugfs files say to user space. Also included by the module.
 */
#ifndef FARROW_SHMEM_IOCTL_H
#define FARROW_SHMEM_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Cache maintenance, each to the point of coherency. */
enum farrow_shmem_op {
	/* Write back what is dirty; lines stay cached. */
	FARROW_SHMEM_CLEAN = 0,
	/* Write back what is dirty and forget the lines: the next load sees memory. */
	FARROW_SHMEM_CLEAN_INVALIDATE = 1,
	/*
	 * Forget the lines WITHOUT writing back. Every store that has not reached memory yet is
	 * lost, whoever made it. x86-64 has no such instruction for a range and writes back as well.
	 */
	FARROW_SHMEM_INVALIDATE = 2,
	FARROW_SHMEM_OPS
};

/* Why it was done. */
enum farrow_shmem_cause {
	FARROW_SHMEM_UNMAP = 0,
	FARROW_SHMEM_IOCTL = 1,
	FARROW_SHMEM_CAUSES
};

/* A range of the device file; offset and bytes are multiples of the page size. */
struct farrow_shmem_range {
	__u64 offset;
	__u64 bytes;
	__u32 op;
	/* Must be zero. */
	__u32 reserved;
};

/*
 * Maintains what is allocated in a range, a call of the maintenance for each block.
 * EINVAL: not aligned, beyond the end of the file's offsets, or an unknown op.
 * EBADF: FARROW_SHMEM_INVALIDATE through a descriptor that is not open for writing.
 * EINTR: a fatal signal came between two blocks.
 */
#define FARROW_SHMEM_MAINTAIN _IOW('F', 1, struct farrow_shmem_range)

/*
 * Writes back and empties all caches of all CPUs: whatever anybody stored is in memory, whatever
 * anybody loads comes from there. It slows down everything that runs, so it has to be allowed by
 * the parameter all_caches. x86-64 only. The argument must be zero (EINVAL).
 * EPERM: all_caches does not allow it here.
 * EOPNOTSUPP: arm64, which has no instruction for it that reaches the caches of other CPUs.
 */
#define FARROW_SHMEM_WRITE_BACK_ALL _IO('F', 2)

/* One record of debugfs' samples file, in the machine's byte order. */
struct farrow_shmem_sample {
	/* Monotonic clock at the begin of the call. */
	__u64 at_ns;
	__u32 duration_ns;
	__u32 bytes;
	__u32 pid;
	/* enum farrow_shmem_op, enum farrow_shmem_cause. */
	__u16 op;
	__u16 cause;
};

#endif
