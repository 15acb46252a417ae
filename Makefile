# make demo | test | test-matrix | test-wheel-aarch64 | test-plasma | test-pool | history | test-vm | test-ray | test-spark | lab | bench | bench-store | bench-cluster | bench-graph | bench-graph-cluster | bench-network | bench-by-net | bench-limited-link | bench-sharing | bench-fabric | bench-restart | bench-temporal | bench-engines | bench-loads | bench-tpch | bench-dataframes | bench-sql | bench-coherence | reproduce | lint | docs | soak | fuzz | compare | sanitize | install PREFIX=/usr/local | wheels | sdist | deb | chart | container | crates: each sets up what it needs.
#
# A fresh Debian 12 with Rust (1.90 or later), Python 3.10 or later, a C++ compiler and make is
# enough; Python packages go into .venv, everything else into target (or $CARGO_TARGET_DIR).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
# PyO3 and the build script ask this interpreter for its headers and for pyarrow.
export PYO3_PYTHON := $(BIN)/python
export VIRTUAL_ENV := $(VENV)
export PATH := $(BIN):$(PATH)
# A line every ten seconds: BEAT LABEL COMMAND.
BEAT := $(CURDIR)/packaging/heartbeat.sh
# A node that somebody uses here must not be found by the tests.
unexport FARROW_SOCKET

SOURCES := $(shell find crates cpp python sql -type f \( -name '*.rs' -o -name '*.toml' -o -name '*.cc' \
	-o -name '*.h' -o -name '*.hpp' -o -name '*.py' -o -name '*.pyi' \) 2>/dev/null) \
	Cargo.toml Cargo.lock pyproject.toml

.PHONY: help demo test history test-rust test-cross test-install test-python test-pyarrow test-matrix test-wheel-aarch64 test-plasma test-pool test-vm test-ray test-spark lab bench bench-store bench-cluster bench-graph bench-graph-cluster bench-network bench-by-net bench-limited-link bench-sharing bench-fabric bench-restart bench-many bench-temporal bench-engines bench-loads bench-tpch bench-dataframes bench-sql bench-coherence reproduce lint docs install fuzz soak compare sanitize install-c wheels crates sdist deb chart container check-version clean

help:
	@sed -n '1,5p' Makefile

$(VENV)/environment: pyproject.toml
	$(BEAT) "an environment in $(VENV)" $(PYTHON) -m venv $(VENV)
	$(BEAT) "pip installs itself" pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	touch $@

# The demo waits for what it uses, and not for the tools of the tests.
$(VENV)/peers: $(VENV)/environment
	$(BEAT) "pip installs what the demo uses" pip install --quiet --group demo
	touch $@

$(VENV)/tools: $(VENV)/environment
	$(BEAT) "pip installs tools" pip install --quiet --group dev
	touch $@

# The wheel, built as a user's pip builds it, in isolation; test-install and test-pyarrow use the same file.
# The demo and the tests do without the optimization across crates, which takes some minutes: what is
# installed or measured has it.
override WHEELHOUSE := $(VENV)/wheel
$(VENV)/package: $(VENV)/peers $(SOURCES)
	export CARGO_PROFILE_RELEASE_LTO=off
	packaging/wheel_into.sh "$(WHEELHOUSE)"
	touch $@

$(VENV)/farrow: $(VENV)/tools $(VENV)/package
	touch $@

$(VENV)/optimized: $(VENV)/tools $(SOURCES)
	packaging/wheel_into.sh "$(WHEELHOUSE)"
	touch $(VENV)/package $(VENV)/farrow $@

# Without PREFIX the package, in .venv. With PREFIX on the command line what install-c installs.
install: $(if $(filter command,$(origin PREFIX)),install-c,$(VENV)/farrow)

# The C library, its headers and the daemon, with farrow.pc and FarrowConfig.cmake, below PREFIX. DESTDIR
# and LIBDIR (default lib) are used as elsewhere.
PREFIX ?= /usr/local
install-c:
	$(BEAT) install-c packaging/install_c.sh "$(PREFIX)"

$(VENV)/packaging: $(VENV)/tools
	pip install --quiet --group packaging
	touch $@

# The wheel for every Linux from glibc 2.28 on, in dist, used in an empty environment of each Python here.
# ARCH=aarch64 builds the one for that machine on x86-64: test-wheel-aarch64 uses it.
ARCH ?= x86_64
wheels: $(VENV)/packaging
	packaging/wheels.sh $(ARCH)
	if [ $(ARCH) = x86_64 ]; then bash tests/wheel.sh dist/farrow-*_x86_64.whl; fi

# The aarch64 wheel, built by this and run under QEMU; its graph features are those of x86-64. Minutes.
# As root it installs what it needs.
test-wheel-aarch64: $(VENV)/farrow $(VENV)/packaging
	packaging/wheels.sh aarch64
	python tests/wheel_aarch64.py dist/farrow-*_aarch64.whl

# The source distribution, in dist: built again from its own crates, without a network, and used. The
# wheel of farrow-sql, which is Python only.
sdist: $(VENV)/packaging
	packaging/sdist.sh
	tests/sdist.sh dist/farrow-*.tar.gz
	rm -f dist/farrow_sql-*.whl
	pip wheel --quiet --no-deps --wheel-dir dist ./sql

# Three Debian packages in dist, installed and used in a fresh Debian. As root.
deb:
	packaging/deb.sh dist
	tests/deb.sh dist

# The Helm chart, rendered and checked. helm is built by Go if this machine has none.
HELM_VERSION ?= v3.16.4
chart: $(VENV)/farrow
	command -v helm >/dev/null || GOBIN=$(BIN) go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)
	FARROW_HELM=require python -m pytest tests/python/package/test_chart.py

# The steps of packaging/Containerfile in a chroot, and its node used from outside. As root.
container: $(VENV)/farrow
	packaging/deb.sh dist
	source tests/chroot.sh
	need_root_and mmdebstrap
	command -v ip >/dev/null || need_root_and iproute2
	python tests/container.py dist

# VERSION, such as v0.1.0, is that of all sources, and CHANGELOG.md has a section for it.
check-version:
	@version="$(VERSION:v%=%)"
	has() { grep -q "$$1" "$$2" || { echo "check-version: $$2 does not say $$version" >&2; exit 1; }; }
	has "^version = \"$$version\"$$" Cargo.toml
	has "^version = \"$$version\"$$" sql/pyproject.toml
	has "^appVersion: $$version$$" packaging/chart/Chart.yaml
	has "^## \[$$version\] - 2" CHANGELOG.md

# The archives of the public crates, in target/package. CRATES=--verify builds each.
crates:
	packaging/crates.sh $(CRATES)

demo: $(VENV)/package
	$(BEAT) "farrow demo" farrow demo $(if $(DATA),--data "$(DATA)")

test: test-rust test-cross test-install test-python test-pyarrow

test-rust: $(VENV)/tools
	$(BEAT) "tests in Rust" python tests/rust.py

test-cross:
	$(BEAT) test-cross sh tests/cross.sh

# The wheel as a user installs it, in an environment with nothing in it.
test-install: $(VENV)/farrow
	$(BEAT) test-install sh tests/install.sh $(PYTHON) "$(WHEELHOUSE)"/farrow-*.whl

# Files of tests side by side: most tests wait most of the time. WORKERS=0 runs them one by one.
WORKERS ?= 2
test-python: $(VENV)/farrow
	$(BEAT) pytest bash tests/python.sh -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The wheel with the oldest pyarrow, which has no memory pool, and with the one of the build.
test-pyarrow: $(VENV)/farrow
	WHEEL="$${WHEEL:-$$(echo "$(WHEELHOUSE)"/farrow-*.whl)}" PYTHON=$(BIN)/python $(BEAT) test-pyarrow bash tests/matrix.sh small

# The wheel with every Python and every pyarrow that are to be had, and the own tests of each pyarrow that
# has a pool. An hour and a half at most.
test-matrix: $(VENV)/tools
	PYTHON=$(BIN)/python timeout 5400 bash tests/matrix.sh full

# Plasma's own tests, of the wheel of pyarrow 11, on farrow.compat.plasma. A minute.
test-plasma: $(VENV)/farrow
	timeout 1800 python tests/plasma_own.py

# pyarrow's own tests, with Farrow's memory pool as the default one: the same pass. Minutes. test-matrix
# runs them for each pyarrow that has a pool.
test-pool: $(VENV)/farrow
	timeout 3600 python tests/pyarrow_own.py

# A graph's workers on two nodes of Ray, which is too large to be installed for every test.
test-ray: $(VENV)/farrow
	pip install --quiet --group ray
	python -m pytest tests/python/graph_cluster/test_graph_cluster.py tests/python/sharing/test_sharing_ray.py tests/python/sharing/test_ray_transport.py tests/python/engines/test_blocks.py tests/python/site/test_docs.py -k ray

# Spark's data source, and the JDBC driver of Flight SQL. Spark is 400 MB and needs Java 17, which root
# installs here if there is none.
test-spark: $(VENV)/farrow
	pip install --quiet --group spark
	command -v java >/dev/null || \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless; }
	FARROW_SPARK=require python -m pytest tests/python/engines/test_spark.py tests/python/flight/test_flight_jdbc.py tests/python/site/test_docs.py -k 'spark or jdbc'

# Two virtual machines that share memory, then a bad network alone; as root it installs what it needs.
# Debian on x86-64. VM="--only network" runs one of the two.
test-vm:
	$(PYTHON) tests/vm/run.py $(VM)

# Cache maintenance measured in a kernel module, in emulated arm64 and x86-64 machines; also checked
# and stressed. As root it installs what it needs, from Debian alone: so by Debian's own Python.
lab:
	/usr/bin/python3 kernel/run lab $(LAB)

bench: $(VENV)/optimized
	pip install --quiet --group bench
	python bench/run.py $(BENCH)

bench-store: $(VENV)/optimized
	pip install --quiet --group bench
	python bench/store.py $(BENCH)

bench-cluster: $(VENV)/optimized
	pip install --quiet --group bench
	python bench/cluster.py $(BENCH)

bench-graph: $(VENV)/optimized
	python bench/graph.py $(BENCH)

bench-graph-cluster: $(VENV)/optimized
	python bench/graph_cluster.py $(BENCH)

bench-coherence: $(VENV)/optimized
	python bench/coherence.py $(BENCH)

bench-restart: $(VENV)/optimized
	python bench/restart.py $(BENCH)

bench-many: $(VENV)/optimized
	python bench/many.py $(BENCH)

bench-temporal: $(VENV)/optimized
	python bench/temporal.py $(BENCH)

bench-engines: $(VENV)/optimized
	python bench/engines.py $(BENCH)

bench-loads: $(VENV)/optimized
	python bench/loads.py $(BENCH)

bench-tpch: $(VENV)/optimized
	python bench/tpch.py $(BENCH)

bench-dataframes: $(VENV)/optimized
	pip install --quiet --group ray
	python bench/dataframes.py $(BENCH)

# Spark beside it: its package and a JVM, as for test-spark.
bench-sql: $(VENV)/optimized
	pip install --quiet --group spark
	command -v java >/dev/null || \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless; }
	python bench/sql.py $(BENCH)

bench-network: $(VENV)/optimized
	cargo build --quiet --release -p farrow-bench-network
	python bench/network.py $(BENCH)

bench-by-net: $(VENV)/optimized
	python bench/by_net.py $(BENCH)

bench-limited-link: $(VENV)/optimized
	python bench/limited_link.py $(BENCH)

bench-sharing: $(VENV)/optimized
	python bench/sharing.py $(BENCH)

bench-fabric:
	cargo build --quiet --release -p farrow-bench-fabric
	cargo run --quiet --release -p farrow-bench-fabric -- compare $(BENCH)

# The tables and figures of the thesis and the papers, ours beside theirs on one page.
reproduce: $(VENV)/optimized
	cargo build --quiet --release -p farrow-bench-network
	cargo build --quiet --release -p farrow-bench-micro
	python bench/reproduce.py $(BENCH)

lint: $(VENV)/tools
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	ruff check python sql tests bench docs examples kernel kernel/run crates/python packaging
	ruff format --check python sql tests bench docs examples kernel kernel/run crates/python packaging
	mypy
	mypy --config-file bench/mypy.ini
	python bench/figures.py

# The site, with the Rust reference in it; warnings and dead links are errors.
docs: $(VENV)/farrow
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict
	cp -r "$${CARGO_TARGET_DIR:-target}/doc" target/site/rust
	echo "target/site/index.html"

# Four hours' worth of operations; memory, descriptors and fragmentation must stay flat.
soak: $(VENV)/tools
	FARROW_SOAK_OPERATIONS=14400000 cargo test --release --quiet -p farrow-daemon-tests --test soak -- --nocapture

# What clients did on nodes that are killed, paused and upgraded and whose links fail, so many calls of it
# judged for linearizability; once where nothing is evicted, once where objects are. With Go, by
# porcupine too. SEED is another run.
OPERATIONS ?= 1000000
history: $(VENV)/tools
	FARROW_HISTORY_OPERATIONS=$(OPERATIONS) $(if $(SEED),FARROW_HISTORY_SEED=$(SEED)) \
		cargo test --quiet -p farrow-daemon-tests --test history -- --nocapture --test-threads=1

# Needs cargo-fuzz; RUNS executions of each target.
RUNS ?= 1000000
fuzz:
	for crate in arrow cluster net; do
		( cd crates/$$crate && for target in $$(RUSTC_BOOTSTRAP=1 cargo fuzz list); do
			RUSTC_BOOTSTRAP=1 cargo fuzz run $$target -- -runs=$(RUNS); done )
	done

# Graph features against the definitions written as slow code, cell by cell: STREAMS random streams
# (small, medium, large), in batch mode and row by row, with 1 and with 2 threads. Minutes.
STREAMS ?= 100000,1000,100
compare:
	for threads in 1 2; do
		FARROW_GRAPH_STREAMS=$(STREAMS) FARROW_GRAPH_THREADS=$$threads cargo test --release --quiet \
			-p farrow-graph --test batch --test causal -- agree_with_the_oracle
	done

# Reads and writes beyond what was allocated, in the crates with memory of their own and in the
# graph; data races between two threads of the graph (TSAN= leaves that out). Builds of their own
# in the target directory; races need the source of std: rustup component add rust-src. Models are
# run by loom, which leaves memory behind.
SANITIZED := RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/sanitized
SANITIZED_FOR := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
TSAN ?= yes
sanitize:
	$(SANITIZED)/address RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=allocator_may_return_null=1 \
		cargo test --quiet --tests --target $(SANITIZED_FOR) -p farrow-graph -p farrow-memory \
		-p farrow-testkit -p farrow-store -p farrow-arrow -- --skip models::
	if [ -n "$(TSAN)" ]; then
		$(SANITIZED)/thread RUSTFLAGS="-Zsanitizer=thread --cfg crossbeam_sanitize_thread" \
			FARROW_GRAPH_STREAMS=500 FARROW_GRAPH_THREADS=2 cargo test --quiet -Zbuild-std \
			--target $(SANITIZED_FOR) -p farrow-graph --test batch --test causal -- agree_with_the_oracle
	fi

clean:
	rm -rf $(VENV) target
