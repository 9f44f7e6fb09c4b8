"""Command lines and manifests as charts and tutorials have them, re-typed, for `tritium migrate`."""

from __future__ import annotations

from typing import Final

QUICKSTART: Final = """\
# Step 2: launch triton from the NGC container
docker run --gpus=1 --rm --net=host -v ${PWD}/model_repository:/models \\
    nvcr.io/nvidia/tritonserver:25.02-py3 tritonserver --model-repository=/models \\
    --model-control-mode explicit --load-model densenet_onnx
"""

CHART_ON_PREMISES: Final = """\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: {{ .Chart.Name }}
          image: "{{ .Values.image.imageName }}"
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          resources:
            limits:
              nvidia.com/gpu: {{ .Values.image.numGpus }}
          args: ["tritonserver", "--model-store={{ .Values.image.modelRepositoryPath }}",
                 "--model-control-mode=poll",
                 "--repository-poll-secs=5"]
          ports:
            - containerPort: 8000
              name: http
"""

CHART_MARKETPLACE: Final = """\
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: {{ .Release.Name }}
        image: "{{ .Values.image.registry }}/{{ .Values.image.repository }}:{{ .Values.image.tag }}"
        env:
        - name: LD_PRELOAD
          value: {{ .Values.image.ldPreloadPath }}
        args: ["tritonserver", "--model-store={{ .Values.modelRepositoryPath }}",
               "--strict-model-config={{ .Values.image.strictModelConfig }}",
               "--log-verbose={{ .Values.image.logVerboseLevel }}",
               "--allow-gpu-metrics={{ .Values.image.allowGPUMetrics }}"]
"""

CHART_VALUES: Final = """\
replicaCount: 1
image:
  imageName: nvcr.io/nvidia/tritonserver:24.05-py3
  pullPolicy: IfNotPresent
serverCommand: tritonserver
serverArgs:
  - '--model-repository=s3://acme-models/triton'  # mounted nowhere
  - "--log-info=true"
"""

SERVING_RUNTIME: Final = """\
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata:
  name: kserve-tritonserver
spec:
  supportedModelFormats:
  - name: tensorrt
    version: "8"
  containers:
  - args:
    - tritonserver
    - --model-store=/mnt/models
    - --grpc-port=9000
    - --http-port=8080
    - --allow-grpc=true
    - --allow-http=true
    image: nvcr.io/nvidia/tritonserver:23.05-py3
    name: kserve-container
"""

MODEL_MESH: Final = """\
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
spec:
  containers:
    - name: triton
      image: triton:replace
      command: [/bin/sh]
      args:
        - -c
        - 'mkdir -p /models/_triton_models;
          chmod 777 /models/_triton_models;
          exec tritonserver
          "--model-repository=/models/_triton_models"
          "--model-control-mode=explicit"
          "--strict-model-config=false"
          "--strict-readiness=false"
          "--allow-http=true"
          "--allow-sagemaker=false"
          '
"""

LAUNCHER: Final = """\
docker run --rm -it --net host --shm-size=2g --ulimit memlock=-1 --gpus all \\
  -v $(pwd)/tensorrtllm_backend:/tensorrtllm_backend nvcr.io/nvidia/tritonserver:24.11-trtllm-python-py3 bash
python3 /tensorrtllm_backend/scripts/launch_triton_server.py --world_size 4 --model_repo=/repo
"""

MPI: Final = """\
#!/bin/bash
set -e
mpirun --allow-run-as-root -n 1 /opt/tritonserver/bin/tritonserver --model-repository=$REPO \\
  --grpc-port=8001 --http-port=8000 --disable-auto-complete-config \\
  --backend-config=python,shm-region-prefix-name=prefix0_ > server.log 2>&1 &
"""

CYBER_COMPOSE: Final = """\
services:
  triton:
    image: nvcr.io/nvidia/tritonserver:23.06-py3
    command: >-
      tritonserver --model-repository=/models/triton-model-repo --exit-on-error=false
      --model-control-mode=explicit --load-model sid-minibert-onnx
    ports:
      - 8000:8000
  kafka:
    image: bitnami/kafka
    command: kafka-server-start.sh --override x=y
"""

RECOMMENDER: Final = """\
tritonserver --model-repository=/ensemble_export_path/ --backend-config=tensorflow,version=2
"""

LANGUAGE: Final = """\
docker run --gpus all -it --net=host --rm -p 8001:8001 --shm-size=1G -v ${PWD}:/work -w /work \\
  nvcr.io/nvidia/tritonserver:25.03-vllm-python-py3 tritonserver --model-repository ./model_repository
"""

CACHE: Final = """\
export TRITONCACHE_REDIS_PASSWORD=secret
tritonserver --model-repository=/models --cache-config redis,host=redis-host --cache-config redis,port=6379 \\
  --cache-config redis,password=hunter2
"""

TRACES: Final = """\
tritonserver --model-repository=/models --trace-config triton,file=/tmp/trace.json --trace-config rate=1000 \\
  --trace-config level=TIMESTAMPS --trace-config count=100
"""

SPANS: Final = """\
tritonserver --model-repository=/models \\
  --trace-config mode=opentelemetry \\
  --trace-config opentelemetry,url=http://collector:4318/v1/traces
"""

DOCKERFILE: Final = """\
FROM nvcr.io/nvidia/tritonserver:23.10-py3
RUN pip install --no-cache-dir torch transformers
COPY models /models
EXPOSE 8000 8001 8002
ENTRYPOINT ["tritonserver"]
CMD ["--model-repository=/models", "--pinned-memory-pool-byte-size=268435456", \\
     "--cuda-memory-pool-byte-size=0:67108864"]
"""

SECURE: Final = """\
tritonserver --model-repository=/models --grpc-use-ssl=1 --grpc-use-ssl-mutual=1 \\
  --grpc-server-cert=/c/server.crt --grpc-server-key=/c/server.key --grpc-root-cert=/c/ca.crt
"""

OLD: Final = """\
trt=/opt/tritonserver/bin/tritonserver
/opt/tritonserver/bin/tritonserver --model-store=/models --allow-poll-model-repository=true --log-verbose=1
"""

MISTAKEN: Final = """\
tritonserver --model-repository=/models --load-model=resnet
"""

TUNED: Final = """\
/opt/tritonserver/bin/tritonserver --model-repository=/models --http-thread-count=16 \\
  --grpc-infer-thread-count=8 --buffer-manager-thread-count=4 \\
  --metrics-interval-ms=500
"""

SCRIPT_IN_POD: Final = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: triton
    image: nvcr.io/nvidia/tritonserver:24.08-tf2-python-py3
    command: ["/bin/bash", "-c"]
    args:
    - |
      set -e
      pip install numpy  # for the model
      tritonserver \\
        --model-repository=$(MODEL_REPOSITORY) \\
        --allow-metrics=true
"""

RATES: Final = """\
tritonserver --model-repository=/models --rate-limit=execution_count --rate-limit-resource=R1:10:0 \\
  --strict-readiness=true --response-cache-byte-size=1048576 --http-restricted-api=model-repository:key=s3cret
"""
