"""Values of Triton's public charts, of what this chart complains there, and what to lay over them."""

from typing import Any

TRITON = "nvcr.io/nvidia/tritonserver:26.07-py3"
PUBLIC: dict[str, tuple[dict[str, Any], list[str], dict[str, Any]]] = {
    "k8s-onprem": (
        {
            "tags": {"autoscaling": True, "loadBalancing": True, "openshift": False},
            "image": {
                "imageName": TRITON,
                "pullPolicy": "IfNotPresent",
                "modelRepositoryServer": "< Replace with the IP Address of your file server >",
                "modelRepositoryPath": "/srv/models",
                "numGpus": 1,
            },
            "serverArgs": ["--model-repository=/models"],
            "traefik": {"ports": {"triton-http": {"port": 18000}}},
            "autoscaling": {"minReplicas": 1, "maxReplicas": 3, "metrics": [{"type": "Pods"}]},
            "prometheus-adapter": {"prometheus": {"port": 9090}},
        },
        ["tags.loadBalancing", "traefik", "prometheus-adapter", "image", "image.modelRepositoryServer"],
        {
            "tags": {"loadBalancing": False},
            "traefik": None,
            "prometheus-adapter": None,
            "image": {"imageName": "registry.example/tritium:1", "modelRepositoryServer": "10.0.0.7"},
        },
    ),
    "gcp": (
        {
            "replicaCount": 1,
            "image": {
                "imageName": TRITON,
                "pullPolicy": "IfNotPresent",
                "modelRepositoryPath": "gs://triton-inference-server-repository/model_repository",
                "numGpus": 1,
            },
            "service": {"type": "LoadBalancer"},
        },
        ["image"],
        {"image": {"imageName": "registry.example/tritium:1"}},
    ),
    "aws": (
        {
            "replicaCount": 1,
            "image": {
                "imageName": TRITON,
                "modelRepositoryPath": "s3://triton-inference-server-repository/model_repository",
                "numGpus": 1,
            },
            "service": {"type": "LoadBalancer"},
            "secret": {"region": "AWS_REGION", "id": "AWS_SECRET_KEY_ID", "key": "AWS_SECRET_ACCESS_KEY"},
        },
        ["secret", "image"],
        {
            "image": {"imageName": "registry.example/tritium:1"},
            "secret": None,
            "modelRepository": {"secret": {"name": "aws-credentials", "awsCredentials": "credentials"}},
        },
    ),
    "oci": (
        {
            "replicaCount": 1,
            "image": {
                "imageName": TRITON,
                "modelRepositoryPath": "s3://https://<OCI_NAMESPACE>.objectstorage.oraclecloud.com:443/m",
                "numGpus": 1,
            },
            "service": {"type": "LoadBalancer"},
            "secret": {"region": "OCI_REGION", "id": "OCI_SECRET_KEY_ID", "key": "OCI_SECRET_ACCESS_KEY"},
        },
        ["secret", "image.modelRepositoryPath", "image"],
        {
            "image": {
                "imageName": "registry.example/tritium:1",
                "modelRepositoryPath": "s3://https://tenant.compat.objectstorage.oraclecloud.com:443/m",
            },
            "secret": None,
        },
    ),
    "fleetcommand": (
        {
            "replicaCount": 1,
            "image": {
                "imageName": TRITON,
                "pullPolicy": "IfNotPresent",
                "numGpus": 1,
                "serverCommand": "tritonserver",
                "serverArgs": None,
            },
            "service": {
                "type": "NodePort",
                "httpNodePort": 30343,
                "grpcNodePort": 30344,
                "metricsNodePort": 30345,
            },
            "serviceMonitor": {"enabled": True},
        },
        ["serviceMonitor.enabled", "there is no model repository", "image"],
        {
            "image": {
                "imageName": "registry.example/tritium:1",
                "serverArgs": ["--model-repository=s3://models/production"],
            },
            "serviceMonitor": {"enabled": False},
            "podMonitor": {"enabled": True},
        },
    ),
    "gke-marketplace-app": (
        {
            "initReplicaCount": 1,
            "minReplicaCount": 1,
            "maxReplicaCount": 3,
            "tritonProtocol": "HTTP",
            "HPATargetAverageValue": 85,
            "modelRepositoryPath": "gs://triton_sample_models/26.07",
            "publishedVersion": "2.71.0",
            "gcpMarketplace": True,
            "image": {
                "registry": "gcr.io",
                "repository": "nvidia-ngc-public/tritonserver",
                "tag": "26.07-py3",
                "pullPolicy": "IfNotPresent",
                "numGpus": 1,
                "strictModelConfig": False,
                "ldPreloadPath": "",
                "logVerboseLevel": 0,
                "allowGPUMetrics": True,
            },
            "service": {"type": "NodePort"},
            "deployment": {"livenessProbe": {"failureThreshold": 60}},
        },
        [
            "initReplicaCount",
            "minReplicaCount",
            "maxReplicaCount",
            "tritonProtocol",
            "HPATargetAverageValue",
            "modelRepositoryPath",
            "publishedVersion",
            "gcpMarketplace",
            "deployment",
            "image",
            "there is no model repository",
        ],
        {
            **dict.fromkeys(
                (
                    "initReplicaCount",
                    "minReplicaCount",
                    "maxReplicaCount",
                    "tritonProtocol",
                    "HPATargetAverageValue",
                    "modelRepositoryPath",
                    "publishedVersion",
                    "gcpMarketplace",
                    "deployment",
                )
            ),
            "image": {
                "registry": "registry.example",
                "repository": "tritium",
                "tag": "1",
                "modelRepositoryPath": "gs://triton_sample_models/26.07",
            },
            "autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 3},
            "probes": {"liveness": {"failureThreshold": 60}},
        },
    ),
}
