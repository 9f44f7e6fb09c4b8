{{/* Whether a HorizontalPodAutoscaler decides. Triton's chart switches it on by a tag. */}}
{{- define "tritium.scaled" -}}
{{- if or .Values.autoscaling.enabled (get (.Values.tags | default dict) "autoscaling") }}yes{{ end -}}
{{- end -}}

{{/* Fails with everything that is wrong with the values, and what would be right. */}}
{{- define "tritium.check" -}}
{{- $wrong := concat
      (include "tritium.wrongFromTriton" . | fromJsonArray)
      (include "tritium.wrongArgs" . | fromJsonArray)
      (include "tritium.wrongStorage" . | fromJsonArray)
      (include "tritium.wrongRest" . | fromJsonArray) -}}
{{- if $wrong -}}
{{- fail (printf "\n\nThese values don't fit:\n  - %s\n" (join "\n  - " $wrong)) -}}
{{- end -}}
{{- end -}}

{{/* Values of Triton's charts that mean what this chart does otherwise. */}}
{{- define "tritium.wrongFromTriton" -}}
{{- $wrong := list -}}
{{- $tags := .Values.tags | default dict -}}
{{- if get $tags "loadBalancing" -}}
{{- $wrong = append $wrong "tags.loadBalancing: this chart brings no Traefik. Leave it out, and let gRPC clients balance over the headless Service, or write `gateway` or `istio`" -}}
{{- end -}}
{{- if get $tags "openshift" -}}
{{- $wrong = append $wrong "tags.openshift: the server runs as any user, so it needs no constraint of its own. Write podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}" -}}
{{- end -}}
{{- $said := dict
      "traefik" "this chart brings no Traefik. Leave it out; `gateway` and `istio` route to the servers"
      "prometheus-adapter" "this chart brings no adapter. Install it by itself, with the rules of docs/kubernetes.md; or write `keda`, which needs none"
      "secret" "keys in values stay readable in Helm's records. Make a Secret by `kubectl create secret generic`, and name it and its keys in modelRepository.secret"
      "initReplicaCount" "write replicaCount"
      "minReplicaCount" "write autoscaling: {enabled: true, minReplicas: …}"
      "maxReplicaCount" "write autoscaling: {enabled: true, maxReplicas: …}"
      "HPATargetAverageValue" "a GPU that computes 85% of the time says little about its queue. Write autoscaling.targetPendingRequests, or that metric as autoscaling.metrics"
      "modelRepositoryPath" "write image.modelRepositoryPath"
      "tritonProtocol" "both protocols are served. Leave it out; `gateway` routes both"
      "gcpMarketplace" "this is no application of a marketplace. Leave it out"
      "publishedVersion" "write image.tag"
      "deployment" "write probes: {liveness: {…}, readiness: {…}}" -}}
{{- range $name, $instead := $said -}}
{{- if and (hasKey $.Values $name) (not (kindIs "invalid" (get $.Values $name))) -}}
{{- $wrong = append $wrong (printf "%s: %s" $name $instead) -}}
{{- end -}}
{{- end -}}
{{- if get (.Values.serviceMonitor | default dict) "enabled" -}}
{{- $wrong = append $wrong "serviceMonitor.enabled: each pod is scraped by itself, whichever Services it has. Write podMonitor: {enabled: true}" -}}
{{- end -}}
{{- $wrong | toJson -}}
{{- end -}}

{{/* Flags that the chart itself has, or that its probes can't live with. */}}
{{- define "tritium.wrongArgs" -}}
{{- $wrong := list -}}
{{- $own := dict
      "--http-port" "the probes and Services ask at 8000. To have another outside, write a Service of your own"
      "--grpc-port" "the Services ask at 8001. To have another outside, write a Service of your own"
      "--metrics-port" "Prometheus asks at 8002. Leave it out"
      "--openai-port" "write openai: {enabled: true}"
      "--drain-delay-secs" "write drain: {delaySecs: …}, from which the pod's grace is computed"
      "--exit-timeout-secs" "write drain: {exitTimeoutSecs: …}, from which the pod's grace is computed"
      "--http-use-ssl" "write tls: {secretName: …}; the probes must know"
      "--metrics-use-ssl" "write tls: {secretName: …, metrics: true}; the PodMonitor must know"
      "--auth-file" "write auth: {secretName: …}"
      "--model-cache-directory" "write cache: {claimName: …}"
      "--environment-cache" "write cache: {claimName: …}" -}}
{{- range (include "tritium.given" . | fromJsonArray) -}}
{{- $flag := splitList "=" . | first -}}
{{- with get $own $flag -}}
{{- $wrong = append $wrong (printf "serverArgs: %s: %s" $flag .) -}}
{{- end -}}
{{- if and $.Values.fleet.enabled (eq $flag "--model-control-mode") (ne . "--model-control-mode=explicit") -}}
{{- $wrong = append $wrong (printf "serverArgs: %s: with fleet.enabled servers load what the controller tells them to. Leave it out" .) -}}
{{- end -}}
{{- if regexMatch "^--allow-http=(false|off|0)$" . -}}
{{- $wrong = append $wrong (printf "serverArgs: %s: the probes ask over HTTP. Leave it out, and close port 8000 to clients by networkPolicy" .) -}}
{{- end -}}
{{- if regexMatch "^--http-restricted-api=[a-z,-]*health[,:]" . -}}
{{- $wrong = append $wrong "serverArgs: --http-restricted-api with health: the probes show no key. Leave health out of it" -}}
{{- end -}}
{{- end -}}
{{- $wrong | toJson -}}
{{- end -}}

{{/* Where models come from. */}}
{{- define "tritium.wrongStorage" -}}
{{- $wrong := list -}}
{{- $path := .Values.image.modelRepositoryPath -}}
{{- $server := .Values.image.modelRepositoryServer -}}
{{- $claim := .Values.modelRepository.pvc.claimName -}}
{{- $secret := .Values.modelRepository.secret -}}
{{- if not (or $path $claim $secret.repositories (include "tritium.namesRepository" .)) -}}
{{- $wrong = append $wrong "there is no model repository. Write image.modelRepositoryPath: s3://…, gs://… or as://…, or modelRepository: {pvc: {claimName: …}}" -}}
{{- end -}}
{{- if contains "<" (printf "%s%s" $server $path) -}}
{{- $name := ternary "image.modelRepositoryServer" "image.modelRepositoryPath" (contains "<" $server) -}}
{{- $wrong = append $wrong (printf "%s: %q is a placeholder. Write the address of your file server or bucket" $name (ternary $server $path (contains "<" $server))) -}}
{{- end -}}
{{- if and $server (not (hasPrefix "/" $path)) -}}
{{- $wrong = append $wrong (printf "image.modelRepositoryServer: it wants the path on that server in image.modelRepositoryPath, such as /srv/models. Got %q" $path) -}}
{{- end -}}
{{- if and $claim (or $server $path) -}}
{{- $wrong = append $wrong "modelRepository.pvc: there is also image.modelRepositoryPath or modelRepositoryServer. Write one of them; a folder of the claim is modelRepository.pvc.subPath" -}}
{{- end -}}
{{- if regexMatch "[?&]sig=" $path -}}
{{- $wrong = append $wrong "image.modelRepositoryPath: it holds a signature. Put the address into a Secret, and write modelRepository: {secret: {name: …, repositories: KEY}}" -}}
{{- end -}}
{{- $named := compact (list $secret.credentials $secret.awsCredentials $secret.googleCredentials $secret.repositories) -}}
{{- if and $named (not $secret.name) -}}
{{- $wrong = append $wrong (printf "modelRepository.secret: %s is a key of a Secret. Write its name: modelRepository: {secret: {name: …}}" (first $named)) -}}
{{- end -}}
{{- if and $secret.name (not $named) -}}
{{- $wrong = append $wrong "modelRepository.secret.name: say which of its keys is what: credentials, awsCredentials, googleCredentials or repositories" -}}
{{- end -}}
{{- $wrong | toJson -}}
{{- end -}}

{{- define "tritium.wrongRest" -}}
{{- $wrong := list -}}
{{- if not (or .Values.image.imageName .Values.image.repository) -}}
{{- $wrong = append $wrong "there is no image. None of Tritium is published: build deploy/Dockerfile, and write image: {imageName: …}" -}}
{{- end -}}
{{- if and .Values.image.imageName (or .Values.image.registry .Values.image.repository .Values.image.tag) -}}
{{- $wrong = append $wrong "image.imageName: it is the whole name. Leave out registry, repository and tag, or write only these" -}}
{{- end -}}
{{- if regexMatch "nvidia[^:]*/tritonserver([:@]|$)" (include "tritium.image" .) -}}
{{- $wrong = append $wrong "image: this is Triton's own image, whose server has other flags. Name one of Tritium" -}}
{{- end -}}
{{- if and .Values.keda.enabled (include "tritium.scaled" .) -}}
{{- $wrong = append $wrong "keda.enabled: autoscaling decides already. Two autoscalers fight: write one of them" -}}
{{- end -}}
{{- if and (include "tritium.scaled" .) (not (or .Values.autoscaling.metrics .Values.autoscaling.targetPendingRequests .Values.autoscaling.targetQueueTimeUs .Values.autoscaling.targetCPUUtilizationPercentage)) -}}
{{- $wrong = append $wrong "autoscaling: by what? Write targetPendingRequests, targetQueueTimeUs, targetCPUUtilizationPercentage or metrics" -}}
{{- end -}}
{{- if and .Values.keda.enabled (not (or .Values.keda.serverAddress .Values.keda.triggers)) -}}
{{- $wrong = append $wrong "keda.serverAddress: write where Prometheus is, such as http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- range $scaler := list "autoscaling" "keda" -}}
{{- with get $.Values $scaler -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- $wrong = append $wrong (printf "%s: minReplicas %d is over maxReplicas %d" $scaler (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.drain.terminationGracePeriodSeconds -}}
{{- $needed := include "tritium.neededGrace" $ | int -}}
{{- if lt (int .) $needed -}}
{{- $wrong = append $wrong (printf "drain.terminationGracePeriodSeconds: %d s are too short, and requests would be cut off. The drain needs %d: leave it out, or lower delaySecs and exitTimeoutSecs" (int .) $needed) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) -}}
{{- $wrong = append $wrong "gateway.parentRefs: name the Gateway, such as [{name: public, namespace: gateways}]" -}}
{{- end -}}
{{- if .Values.inferencePool.enabled -}}
{{- if not .Values.openai.enabled -}}
{{- $wrong = append $wrong "inferencePool: pickers read requests of the OpenAI API. Write openai: {enabled: true}" -}}
{{- end -}}
{{- if not .Values.inferencePool.endpointPicker.name -}}
{{- $wrong = append $wrong "inferencePool.endpointPicker.name: name the Service of the endpoint picker" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.fleet.enabled (not .Values.fleet.wanted) -}}
{{- $wrong = append $wrong "fleet.wanted: write which models the fleet should serve: docs/fleet.md" -}}
{{- end -}}
{{- if .Values.fleet.enabled -}}
{{- if and .Values.auth.secretName (not .Values.fleet.keySecret.name) -}}
{{- $wrong = append $wrong "fleet.keySecret.name: with auth, the controller must show a key that may use model-repository and traffic" -}}
{{- end -}}
{{- if and .Values.tls.secretName .Values.tls.http (not (hasKey .Values.fleet.wanted "replicas")) -}}
{{- $wrong = append $wrong "tls.http: the controller asks servers that it finds over plain HTTP. Write tls: {http: false}, or list https://… as fleet.wanted.replicas" -}}
{{- end -}}
{{- if not (or .Values.service.headless.enabled (hasKey .Values.fleet.wanted "replicas") (hasKey .Values.fleet.wanted "discovery")) -}}
{{- $wrong = append $wrong "service.headless.enabled: the controller finds the servers by that Service. Leave it true" -}}
{{- end -}}
{{- end -}}
{{- $wrong | toJson -}}
{{- end -}}
