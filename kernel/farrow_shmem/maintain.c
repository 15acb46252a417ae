// SPDX-License-Identifier: GPL-2.0
/*
 * Cache maintenance to the point of coherency, for arm64 and x86-64. The functions that do it are
 * noinline so that ftrace can time them. Nothing here knows what the memory is for.
 */
#include <linux/io.h>
#include <linux/libnvdimm.h>
#include <linux/mm.h>

#include "farrow_shmem.h"

#if defined(CONFIG_ARM64)

#include <asm/cpufeature.h>
#include <asm/sysreg.h>

static size_t line_bytes;

void farrow_shmem_maintain_init(void)
{
	/* CTR_EL0.DminLine: log2 of the words in the smallest data cache line of all CPUs. */
	u64 type = read_sanitised_ftr_reg(SYS_CTR_EL0);

	line_bytes = 4UL << ((type >> 16) & 0xf);
}

#define EACH_LINE(instruction, start, bytes)                                                    \
	do {                                                                                    \
		unsigned long line = (unsigned long)(start) & ~(line_bytes - 1);                \
		unsigned long end = (unsigned long)(start) + (bytes);                           \
												\
		for (; line < end; line += line_bytes)                                          \
			asm volatile(instruction ", %0" : : "r"(line) : "memory");              \
	} while (0)

static __always_inline void each_line(void *start, size_t bytes, enum farrow_shmem_op op)
{
	/* Some early cores lose a clean that is not an invalidate too, as the kernel knows. */
	if (op == FARROW_SHMEM_CLEAN && cpus_have_cap(ARM64_WORKAROUND_CLEAN_CACHE))
		op = FARROW_SHMEM_CLEAN_INVALIDATE;
	/* Stores of other CPUs that this one knows of come before. */
	mb();
	switch (op) {
	case FARROW_SHMEM_CLEAN:
		EACH_LINE("dc cvac", start, bytes);
		break;
	case FARROW_SHMEM_INVALIDATE:
		EACH_LINE("dc ivac", start, bytes);
		break;
	default:
		EACH_LINE("dc civac", start, bytes);
		break;
	}
	dsb(sy);
}

bool farrow_shmem_in_guest(void)
{
	return false;
}

/* By set and way is for a CPU that nobody else runs beside, and passes by system caches. */
int farrow_shmem_write_back_all(void)
{
	return -EOPNOTSUPP;
}

#elif defined(CONFIG_X86_64)

#include <asm/cacheflush.h>
#include <asm/cpufeature.h>
#include <asm/smp.h>

void farrow_shmem_maintain_init(void)
{
}

static __always_inline void each_line(void *start, size_t bytes, enum farrow_shmem_op op)
{
	if (op == FARROW_SHMEM_CLEAN && IS_ENABLED(CONFIG_ARCH_HAS_PMEM_API)) {
		mb();
		/* clwb, or what this CPU has in its place. */
		arch_wb_cache_pmem(start, bytes);
		mb();
		return;
	}
	/* clflushopt between fences; an invalidation that writes nothing back does not exist. */
	clflush_cache_range(start, bytes);
}

/* A hypervisor may take the instruction from a guest and do nothing. */
bool farrow_shmem_in_guest(void)
{
	return boot_cpu_has(X86_FEATURE_HYPERVISOR);
}

int farrow_shmem_write_back_all(void)
{
	/* Stores of the caller before its own CPU's instruction; those of others are in caches. */
	mb();
	wbinvd_on_all_cpus();
	return 0;
}

#else
#error "farrow_shmem: arm64 and x86-64 only"
#endif

/* What is measured: one call for each block of a mapping that goes, or of a range asked for. */
noinline void farrow_shmem_maintain(void *start, size_t bytes, enum farrow_shmem_op op)
{
	each_line(start, bytes, op);
}

/*
 * A new block's zeros go to memory before anybody can map it: an invalidation would else bring
 * back what the page held before, for whoever may invalidate. Not measured.
 */
noinline void farrow_shmem_clean_new(void *start, size_t bytes)
{
	each_line(start, bytes, FARROW_SHMEM_CLEAN);
}
