/* What the comparison asks of DPDK's mempool; `dpdk.rs` compiles it where DPDK is installed. */

#include <stdio.h>
#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mempool.h>

/* Starts DPDK, whose caches belong to threads that it knows: this one runs on `cpu` from now on. 0 when it runs. */
int start(unsigned cpu)
{
	char cpus[16];
	snprintf(cpus, sizeof cpus, "%u", cpu);
	char *args[] = {"uslub-bench",    "--no-huge",     "--no-pci", "--no-shconf",
	                "--no-telemetry", "--log-level=1", "-m",       "128",
	                "-l",             cpus,            NULL};
	return rte_eal_init(sizeof args / sizeof *args - 1, args) < 0;
}

static __thread int registered;

/* This thread gets a cache of its own, unless it has one. 0 when it has one then. */
int enter(void)
{
	if (rte_lcore_id() == LCORE_ID_ANY)
		registered = rte_thread_register() == 0;
	return rte_lcore_id() == LCORE_ID_ANY;
}

/* What `enter` gave it is given back. */
void leave(void)
{
	if (registered)
		rte_thread_unregister();
	registered = 0;
}

/* A pool of objects of `size` bytes; null when there is no memory. */
void *pool(const char *name, unsigned objects, unsigned size)
{
	return rte_mempool_create(name, objects, size, RTE_MEMPOOL_CACHE_MAX_SIZE, 0, NULL, NULL, NULL, NULL,
	                          SOCKET_ID_ANY, 0);
}

/* Gives it back. */
void destroy(void *pool)
{
	rte_mempool_free(pool);
}

/* Takes `n` objects. 0 when it did. */
int get(void *pool, void **objects, unsigned n)
{
	return rte_mempool_get_bulk(pool, objects, n);
}

/* Gives them back. */
void put(void *pool, void **objects, unsigned n)
{
	rte_mempool_put_bulk(pool, objects, n);
}

/* Both, many times, as DPDK's users have it: inlined. 0 when all were there. */
int rounds(void *pool, void **objects, unsigned n, unsigned long loops)
{
	int failed = 0;
	for (unsigned long i = 0; i < loops && !failed; i++) {
		failed = rte_mempool_get_bulk(pool, objects, n);
		__asm__ volatile("" : "+r"(objects) : : "memory");
		if (!failed)
			rte_mempool_put_bulk(pool, objects, n);
	}
	return failed;
}
