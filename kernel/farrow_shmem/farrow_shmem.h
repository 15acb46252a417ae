/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of the module say to each other. */
#ifndef FARROW_SHMEM_H
#define FARROW_SHMEM_H

#include <linux/atomic.h>
#include <linux/mm.h>
#include <linux/types.h>
#include <linux/xarray.h>

#include "farrow_shmem_ioctl.h"

/* The largest order that the page allocator of every supported kernel (6.1 and later) takes. */
#define FARROW_SHMEM_ORDER_MAX 10

/* Counters, all shown by debugfs; those that end in _live go down again. */
struct farrow_shmem_counters {
	atomic64_t pages_allocated;
	atomic64_t pages_freed;
	atomic64_t blocks_live;
	atomic64_t spaces_live;
	atomic64_t mappings_live;
	atomic64_t faults;
	atomic64_t faults_refused;
	atomic64_t write_backs_of_all;
};

extern struct farrow_shmem_counters farrow_shmem_counters;

/* device.c: the parameters. */
u64 farrow_shmem_bytes_max(void);

/*
 * space.c: blocks of one order by their place in the file. A space lives while a file is open on
 * it, and a mapping keeps its file; so no block goes while somebody can reach it.
 */
struct farrow_shmem_space {
	unsigned int order;
	/* Open files; under the lock of the table of spaces. */
	unsigned int files;
	/* Held while a block is made, so that of two that fault in it one makes it. */
	struct mutex making;
	/* Block number -> first page. Only grows while the space lives. */
	struct xarray blocks;
};

struct farrow_shmem_space *farrow_shmem_space_get(unsigned int order);
void farrow_shmem_space_put(struct farrow_shmem_space *space);
struct page *farrow_shmem_space_block(struct farrow_shmem_space *space, pgoff_t number);
int farrow_shmem_space_maintain(struct farrow_shmem_space *space, pgoff_t first, pgoff_t end,
				enum farrow_shmem_op op, enum farrow_shmem_cause cause);

/* maintain.c: the instructions. */
void farrow_shmem_maintain_init(void);
void farrow_shmem_maintain(void *start, size_t bytes, enum farrow_shmem_op op);
void farrow_shmem_clean_new(void *start, size_t bytes);
bool farrow_shmem_in_guest(void);
int farrow_shmem_write_back_all(void);

/* record.c: samples, histograms, debugfs. */
int farrow_shmem_record_init(void);
void farrow_shmem_record_exit(void);
void farrow_shmem_record(u64 at_ns, u64 duration_ns, size_t bytes, enum farrow_shmem_op op,
			 enum farrow_shmem_cause cause);

#endif
