// SPDX-License-Identifier: GPL-2.0
/*
 * Spaces: which block lies where in the file. One space for each order that is open, so that files
 * opened with the same order share their pages, whoever opened them.
 */
#include <linux/gfp.h>
#include <linux/ktime.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "farrow_shmem.h"

/* Built by the harness alone: every other block is not freed, and its check has to see that. */
#ifndef FARROW_SHMEM_LEAK
#define FARROW_SHMEM_LEAK 0
#endif
#define LEAK_NONE 0
/* Leaks, and the counters say so. */
#define LEAK_COUNTED 1
/* Leaks, and the counters lie: only the kernel's own numbers tell. */
#define LEAK_HIDDEN 2

static DEFINE_MUTEX(table_lock);
static struct farrow_shmem_space *table[FARROW_SHMEM_ORDER_MAX + 1];
/* Of all spaces; never above the parameter at the time of the last allocation. */
static atomic64_t bytes_live;

struct farrow_shmem_space *farrow_shmem_space_get(unsigned int order)
{
	struct farrow_shmem_space *space;

	if (order > FARROW_SHMEM_ORDER_MAX)
		return ERR_PTR(-EINVAL);
	mutex_lock(&table_lock);
	space = table[order];
	if (!space) {
		space = kzalloc(sizeof(*space), GFP_KERNEL);
		if (!space) {
			mutex_unlock(&table_lock);
			return ERR_PTR(-ENOMEM);
		}
		space->order = order;
		mutex_init(&space->making);
		xa_init(&space->blocks);
		table[order] = space;
		atomic64_inc(&farrow_shmem_counters.spaces_live);
	}
	space->files++;
	mutex_unlock(&table_lock);
	return space;
}

static bool is_leaked(pgoff_t number)
{
	return FARROW_SHMEM_LEAK != LEAK_NONE && number % 2 == 0;
}

static void free_block(struct page *page, unsigned int order, pgoff_t number)
{
	atomic64_sub(PAGE_SIZE << order, &bytes_live);
	if (is_leaked(number) && FARROW_SHMEM_LEAK == LEAK_COUNTED)
		return;
	if (!is_leaked(number))
		__free_pages(page, order);
	atomic64_add(1UL << order, &farrow_shmem_counters.pages_freed);
	atomic64_dec(&farrow_shmem_counters.blocks_live);
}

void farrow_shmem_space_put(struct farrow_shmem_space *space)
{
	struct page *page;
	unsigned long number;
	bool is_last;

	mutex_lock(&table_lock);
	is_last = --space->files == 0;
	if (is_last)
		table[space->order] = NULL;
	mutex_unlock(&table_lock);
	if (!is_last)
		return;
	xa_for_each(&space->blocks, number, page) {
		free_block(page, space->order, number);
		cond_resched();
	}
	xa_destroy(&space->blocks);
	kfree(space);
	atomic64_dec(&farrow_shmem_counters.spaces_live);
}

/* Books the bytes first, so that concurrent makers together stay below the limit too. */
static bool book(size_t bytes)
{
	u64 live = atomic64_add_return(bytes, &bytes_live);

	if (live <= farrow_shmem_bytes_max())
		return true;
	atomic64_sub(bytes, &bytes_live);
	return false;
}

/* A whole block that is zero in memory, or an error and nothing. */
static struct page *make_block(unsigned int order)
{
	/* Tries hard, but no process is killed for the sake of contiguous pages. */
	const gfp_t flags = GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN | __GFP_RETRY_MAYFAIL;
	const size_t bytes = PAGE_SIZE << order;
	struct page *page;

	if (!book(bytes))
		return ERR_PTR(-ENOSPC);
	page = alloc_pages(flags, order);
	if (!page) {
		atomic64_sub(bytes, &bytes_live);
		return ERR_PTR(-ENOMEM);
	}
	farrow_shmem_clean_new(page_address(page), bytes);
	atomic64_add(1UL << order, &farrow_shmem_counters.pages_allocated);
	atomic64_inc(&farrow_shmem_counters.blocks_live);
	return page;
}

/*
 * The first page of a block, which is made if it is not there. -ENOSPC: max_bytes are in use;
 * -ENOMEM: the kernel has no such contiguous pages.
 */
struct page *farrow_shmem_space_block(struct farrow_shmem_space *space, pgoff_t number)
{
	struct page *page = xa_load(&space->blocks, number);
	int error;

	if (page)
		return page;
	mutex_lock(&space->making);
	page = xa_load(&space->blocks, number);
	if (!page) {
		page = make_block(space->order);
		error = IS_ERR(page) ? 0 : xa_err(xa_store(&space->blocks, number, page, GFP_KERNEL));
		if (error) {
			/* Number 1: what is given back here is no leak of the canary's. */
			free_block(page, space->order, 1);
			page = ERR_PTR(error);
		}
	}
	mutex_unlock(&space->making);
	return page;
}

/*
 * Maintains what is allocated of the pages [first, end) of the file, and records each call.
 * An ioctl ends early with -EINTR if its process is being killed; a mapping that goes is
 * maintained to its end, for nobody comes back to it.
 */
int farrow_shmem_space_maintain(struct farrow_shmem_space *space, pgoff_t first, pgoff_t end,
				enum farrow_shmem_op op, enum farrow_shmem_cause cause)
{
	const unsigned int order = space->order;
	struct page *page;
	unsigned long number;

	if (first >= end)
		return 0;
	xa_for_each_range(&space->blocks, number, page, first >> order, (end - 1) >> order) {
		const pgoff_t block = (pgoff_t)number << order;
		const pgoff_t from = max(first, block);
		const pgoff_t to = min(end, block + (1UL << order));
		const size_t bytes = (to - from) << PAGE_SHIFT;
		u64 begin, ended;

		begin = ktime_get_ns();
		farrow_shmem_maintain(page_address(page + (from - block)), bytes, op);
		ended = ktime_get_ns();
		farrow_shmem_record(begin, ended - begin, bytes, op, cause);
		if (cause == FARROW_SHMEM_IOCTL && fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}
