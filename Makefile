# `make demo` shows it, `make test` proves it; `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
export TRIALTAP_CACHE ?= $(HOME)/.cache/trialtap
VENV := .venv
BIN := $(VENV)/bin
CC ?= cc

.PHONY: help install demo test check format lock proto crds tap images clean kube kube-path test-control-plane cluster cluster-down test-cluster serve review sdk-venv

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 16

install: $(VENV)/.installed collector/tap ## make .venv and install everything into it, build tap

$(VENV)/.installed: requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

collector/tap: collector/tap.c
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -static -o $@ $<

tap: collector/tap ## build tap for this machine

images: ## build both images: REGISTRY=… PUSH=1 PLATFORM=linux/arm64 BASE=… (hack/images tells all)
	hack/images

demo: install ## run a real training from Trial to metrics, with no cluster
	$(BIN)/trialtap run -f examples/job.yaml

test: install ## unit, golden and local end-to-end tests, on SQLite, without cluster or network
	$(BIN)/pytest -m 'not (cluster or node or postgresql or mysql or browser or images or sdk)' $(ARGS)

check: install ## format, lint, types, import rules, dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

format: install ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --select I,UP,RUF100 .

LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --python-version 3.11 pyproject.toml
lock: ## resolve the dependencies anew and write the lock files
	$(BIN)/python -m pip install --quiet uv
	$(LOCK) --all-extras -o requirements.lock
	$(LOCK) --extra server -c requirements.lock -o requirements-server.lock
	$(LOCK) --extra collector -c requirements.lock -o requirements-collector.lock
	$(LOCK:pyproject.toml=--group tap) -o requirements-tap.lock

proto: install ## trialtap/api.proto -> trialtap/api.binpb
	$(BIN)/python -m grpc_tools.protoc -I trialtap --descriptor_set_out=/dev/stdout api.proto | $(BIN)/python -c 'import sys; from google.protobuf.descriptor_pb2 import FileDescriptorSet as S; sys.stdout.buffer.write(S.FromString(sys.stdin.buffer.read()).file[0].SerializeToString())' > trialtap/api.binpb.new
	mv trialtap/api.binpb.new trialtap/api.binpb

KUBE_VERSION := 1.36.3
HELM_VERSION := 4.3.1
COREDNS_VERSION := 1.14.3
export KUBEBUILDER_ASSETS ?= $(TRIALTAP_CACHE)/kube-$(KUBE_VERSION)
KUBE_PROGRAMS := kube-apiserver kube-controller-manager kubectl kube-scheduler kubelet kube-proxy
kube: $(addprefix $(KUBEBUILDER_ASSETS)/,$(KUBE_PROGRAMS) helm coredns etcd) ## build the Kubernetes of the tests: 15 minutes the first time

$(addprefix $(KUBEBUILDER_ASSETS)/,$(KUBE_PROGRAMS)): | $(KUBEBUILDER_ASSETS)
	cd tests/cluster/kube && CGO_ENABLED=0 go build -p 2 -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=v$(KUBE_VERSION)' -o $@ k8s.io/kubernetes/cmd/$(@F)

$(KUBEBUILDER_ASSETS)/helm: | $(KUBEBUILDER_ASSETS)
	CGO_ENABLED=0 GOBIN=$(KUBEBUILDER_ASSETS) go install -ldflags '-s -w' helm.sh/helm/v4/cmd/helm@v$(HELM_VERSION)

$(KUBEBUILDER_ASSETS)/coredns: | $(KUBEBUILDER_ASSETS)
	CGO_ENABLED=0 GOBIN=$(KUBEBUILDER_ASSETS) go install -p 2 -ldflags '-s -w' github.com/coredns/coredns@v$(COREDNS_VERSION)

$(KUBEBUILDER_ASSETS)/etcd: | $(KUBEBUILDER_ASSETS)
	@etcd=$$(command -v etcd) && ln -s "$$etcd" $@ || { echo 'etcd: install it first (Debian: etcd-server)' >&2; exit 1; }

$(KUBEBUILDER_ASSETS):
	mkdir -p $@

kube-path: ## say where the control plane is
	@echo $(KUBEBUILDER_ASSETS)

test-control-plane: install kube ## tests on a real API server
	$(BIN)/pytest -m cluster $(ARGS)

cluster: install kube ## start a whole one-node Kubernetes in a network of its own (root)
	$(BIN)/python -m tests.support.node up

cluster-down: install ## end it; nothing stays behind
	$(BIN)/python -m tests.support.node down

test-cluster: install kube ## tests with pods that run: on KUBECONFIG's cluster, else on one of our own for as long
	$(BIN)/python -m tests.support.node run $(BIN)/pytest -m node $(ARGS)

SAMPLE ?= tests/cases/admission/job-stdout.json
SERVE := $(or $(TMPDIR),/tmp)/trialtap-serve-$(shell id -u)
serve: install ## serve the webhook here, with the objects of a recorded case and a certificate of its own
	umask 077 && mkdir -p $(SERVE)
	$(BIN)/python -m certs issue --out $(SERVE) --name localhost --name 127.0.0.1
	$(BIN)/python -c 'import json, sys; json.dump({"kind": "List", "items": json.load(sys.stdin)["objects"]}, sys.stdout)' < $(SAMPLE) > $(SERVE)/objects.json
	$(BIN)/python -m webhook --listen 127.0.0.1:8443 --metrics-listen 127.0.0.1:8080 --cert $(SERVE)/tls.crt --key $(SERVE)/tls.key --objects $(SERVE)/objects.json

review: install ## send the recorded case's request to `make serve` and print the pod's patch
	$(BIN)/python -c 'import json, sys; json.dump(json.load(sys.stdin)["review"], sys.stdout)' < $(SAMPLE) | curl --silent --show-error --fail-with-body --cacert $(SERVE)/ca.crt -H 'Content-Type: application/json' --data-binary @- 'https://localhost:8443/mutate-pod?timeout=10s' | $(BIN)/python -c 'import base64, json, sys; r = json.load(sys.stdin)["response"]; r["patch"] = json.loads(base64.b64decode(r.get("patch", "W10="))); print(json.dumps(r, indent=1))'

crds: install ## trialtap/objects.py -> the chart's CRDs
	$(BIN)/python -m trialtap.crds charts/trialtap/crds-source

SDK := $(TRIALTAP_CACHE)/katib-sdk
sdk-venv: $(SDK)/.katib-0.19.0 ## an environment with Katib's published SDK, for the tests marked sdk

$(SDK)/.katib-0.19.0:
	$(PYTHON) -m venv $(SDK)
	$(SDK)/bin/python -m pip install --quiet --disable-pip-version-check kubeflow-katib==0.19.0
	touch $@

clean: ## remove what was built, .venv included
	rm -rf $(VENV) build dist collector/tap .mypy_cache .ruff_cache .pytest_cache .hypothesis
