//! A fork whose objects others copy: bulk copiers of the cloud services, and pods of Kubernetes.

use std::collections::BTreeMap;

use crate::support::{
    Service, command, delete_all, emulator_stores, fixture, local_stores, run, run_json, synthetic,
    temp,
};
use bytes::Bytes;
use forkpoint::fork::{Export, ExportKind, export};
use forkpoint::progress::Silent;
use forkpoint::restore::RestorePlan;
use forkpoint::store::{DuplicateOptions, Location, Stores};
use forkpoint::verify::verify;
use serde_json::{Value, json};
use yaml_rust2::{Yaml, YamlLoader};

/// Undoes percent-encoding, as the service does with the keys of a manifest.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [a, b, tail @ ..]) => {
                let hex = String::from_utf8(vec![*a, *b]).unwrap();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap());
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

struct Exported {
    stores: Stores,
    original: Location,
    target: Location,
    plan_at: String,
    /// The job, and the rows of the manifest.
    job: Value,
    rows: Vec<String>,
}

async fn exported(service: Service, kind: &str) -> Exported {
    let stores = emulator_stores();
    let root = service.place(0, "export with, odd+names");
    let fixture = fixture("1.20.5-filemerge-p2");
    let original = root.join("original").unwrap();
    fixture.lay(&stores, &original).await;
    let snapshot = original.join(&fixture.newest()).unwrap().to_string();
    let target = service.place(1, "fork");
    let (plan_at, list) = (
        root.join("plan.json").unwrap().to_string(),
        root.join("list.csv").unwrap(),
    );
    let list_at = list.to_string();
    let to = target.to_string();
    let args = [
        "plan",
        &snapshot,
        &to,
        "--workers",
        "1",
        "--out",
        &plan_at,
        "--export",
        kind,
        "--manifest",
        &list_at,
    ];
    let (code, report) = run_json(&args);
    assert_eq!(code, 0, "{report}");
    let manifest = stores.read(&list, u64::MAX).await.unwrap();
    let manifest = String::from_utf8(manifest.to_vec()).unwrap();
    Exported {
        stores,
        original,
        target,
        plan_at,
        job: report["job"].clone(),
        rows: manifest.lines().map(str::to_string).collect(),
    }
}

impl Exported {
    /// Does what the service would do: copies `key` of the source's bucket to prefix and key.
    async fn copy(&self, prefix: &str, keys: &[String]) {
        let bucket = |at: &Location| {
            at.to_string()
                .split('/')
                .take(3)
                .collect::<Vec<_>>()
                .join("/")
        };
        for key in keys {
            let from = crate::support::at(&format!("{}/{key}", bucket(&self.original)));
            let to = crate::support::at(&format!(
                "{}/{}/{key}",
                bucket(&self.target),
                prefix.trim_end_matches('/')
            ));
            self.stores
                .duplicate(&from, &to, &DuplicateOptions::default())
                .await
                .unwrap();
        }
    }

    /// Before and after the job has run: nothing is committed, then all is.
    async fn commit(&self, prefix: &str, keys: &[String], by: &str, proof: &str) {
        assert!(keys.len() > 10);
        let (half, rest) = keys.split_at(keys.len() / 2);
        self.copy(prefix, half).await;
        // Without the word of the user these are strangers: no worker has begun.
        assert_eq!(run(&["commit", &self.plan_at]).status.code(), Some(3));
        let (code, left) = run_json(&["commit", &self.plan_at, "--copied-by", by]);
        assert_eq!((code, &left["objects"]), (6, &json!(rest.len())), "{left}");
        self.copy(prefix, rest).await;

        // One of another size is none.
        let spoilt = self.target.join("shared").unwrap();
        let (at, _) = self.stores.list(&spoilt).await.unwrap().pop().unwrap();
        let content = self.stores.read(&at, u64::MAX).await.unwrap();
        self.stores
            .put(&at, Bytes::from_static(b"?"), false)
            .await
            .unwrap();
        let refused = run(&["commit", &self.plan_at, "--copied-by", by]);
        assert_eq!(refused.status.code(), Some(3));
        assert!(String::from_utf8_lossy(&refused.stderr).contains(at.name()));
        // Nor is one of the same size with other bytes, where contents or hashes are compared.
        self.stores
            .put(&at, Bytes::from(vec![b'?'; content.len()]), false)
            .await
            .unwrap();
        let args = [
            "commit",
            &self.plan_at,
            "--copied-by",
            by,
            "--verify",
            "content",
        ];
        assert_eq!(run(&args).status.code(), Some(3));
        self.stores.put(&at, content, false).await.unwrap();

        let (code, report) = run_json(&["commit", &self.plan_at, "--copied-by", by]);
        assert_eq!(
            (code, &report["independent"]),
            (0, &json!(true)),
            "{report}"
        );
        assert_eq!(report["proofs"], json!({proof: keys.len()}));
        assert_eq!(report["copied_by"], json!(by));
        delete_all(&self.stores, &self.original).await;
        let snapshot = crate::support::at(report["snapshot"].as_str().unwrap());
        assert_eq!(
            verify(&self.stores, &snapshot, &Silent)
                .await
                .unwrap()
                .problems,
            []
        );
    }
}

#[tokio::test]
async fn s3_batch_operations_can_do_the_copying() {
    if !Service::S3.is_there("the export for S3 Batch Operations") {
        return;
    }
    let exported = exported(Service::S3, "s3-batch").await;
    let bucket = exported.original.bucket().name;
    let keys: Vec<String> = exported
        .rows
        .iter()
        .map(|row| {
            let (first, key) = row.split_once(',').unwrap();
            assert_eq!(first, bucket);
            assert!(
                key.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-_.~/%".contains(&b)),
                "{key}"
            );
            decoded(key)
        })
        .collect();
    let job = &exported.job;
    let copy = &job["Operation"]["S3PutObjectCopy"];
    assert_eq!(
        copy["TargetResource"],
        json!(format!("arn:aws:s3:::{}", exported.target.bucket().name))
    );
    assert_eq!(job["Manifest"]["Spec"]["Fields"], json!(["Bucket", "Key"]));
    // The service puts a slash between prefix and key.
    let prefix = copy["TargetKeyPrefix"].as_str().unwrap();
    assert!(!prefix.ends_with('/'));
    exported.commit(prefix, &keys, "s3-batch", "checksum").await;
}

#[tokio::test]
async fn storage_transfer_service_can_do_the_copying() {
    if !Service::Gcs.is_there("the export for Storage Transfer Service") {
        return;
    }
    let exported = exported(Service::Gcs, "gcs-transfer").await;
    let keys: Vec<String> = exported
        .rows
        .iter()
        .map(|row| {
            // The names hold a comma.
            let quoted = row.strip_prefix('"').and_then(|row| row.strip_suffix('"'));
            quoted.unwrap().replace("\"\"", "\"")
        })
        .collect();
    let spec = &exported.job["transferSpec"];
    assert_eq!(
        spec["gcsDataSource"]["bucketName"],
        json!(exported.original.bucket().name)
    );
    assert_eq!(
        spec["gcsDataSink"]["bucketName"],
        json!(exported.target.bucket().name)
    );
    assert_eq!(spec["transferOptions"]["overwriteWhen"], json!("NEVER"));
    let prefix = spec["gcsDataSink"]["path"].as_str().unwrap();
    assert!(prefix.ends_with('/') && !prefix.starts_with('/'));
    exported.commit(prefix, &keys, "gcs-transfer", "size").await;
}

#[tokio::test]
async fn what_a_bulk_copier_cannot_do_is_said_before_anything_is_written() {
    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = synthetic::lay(&stores, &root.join("original").unwrap(), 3, 5).await;
    let at = |name: &str| root.join(name).unwrap().to_string();
    let (source, to, plan, list) = (
        snapshot.to_string(),
        at("fork"),
        at("plan.json"),
        at("list.csv"),
    );
    for kind in ["s3-batch", "gcs-transfer"] {
        let args = [
            "plan",
            &source,
            &to,
            "--workers",
            "1",
            "--out",
            &plan,
            "--export",
            kind,
            "--manifest",
            &list,
        ];
        let output = run(&args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("forkpoint run"), "{said}");
        assert!(
            stores
                .find(&crate::support::at(&plan))
                .await
                .unwrap()
                .is_none()
        );
        assert!(
            stores
                .find(&crate::support::at(&list))
                .await
                .unwrap()
                .is_none()
        );
    }
}

/// A plan with whole old keys from one bucket of S3 to another, of which `change` makes another.
fn exported_after(plan: &Value, change: impl Fn(&mut Value)) -> forkpoint::Result<Export> {
    let text = plan.to_string().replace("file:/", "s3://from/");
    let mut plan: Value = serde_json::from_str(&text).unwrap();
    change(&mut plan);
    let plan = RestorePlan::from_json(plan.to_string().as_bytes()).unwrap();
    export(
        &plan,
        ExportKind::S3Batch,
        &crate::support::at("s3://from/list.csv"),
    )
}

#[tokio::test]
async fn the_limits_of_bulk_copiers_are_known() {
    let (_dir, root) = temp();
    let snapshot = synthetic::lay(&local_stores(), &root.join("original").unwrap(), 3, 5).await;
    let to = root.join("fork").unwrap().to_string();
    let args = [
        "plan",
        &snapshot.to_string(),
        &to,
        "--workers",
        "1",
        "--names",
        "whole-keys",
    ];
    let (code, report) = run_json(&args);
    assert_eq!(code, 0);
    let plan = &report["plan"];
    let whole = exported_after(plan, |_| ()).unwrap();
    assert_eq!(whole.manifest.lines().count(), 3);
    let task = "/tasks/1/duplicate";
    for (field, value, words) in [
        ("size", json!(5_000_000_001u64), "up to 5 GB"),
        ("source", json!("s3://other/x"), "another name"),
        (
            "destination",
            json!("s3://from/elsewhere/x"),
            "another name",
        ),
    ] {
        let e = exported_after(plan, |plan| {
            plan.pointer_mut(task).unwrap()[field] = value.clone()
        });
        assert!(e.unwrap_err().to_string().contains(words), "{field}");
    }
    let key =
        |plan: &Value| plan.pointer(task).unwrap()["source"].as_str().unwrap()[10..].to_string();
    let e = exported_after(plan, |plan| {
        let source = format!("s3://third/{}", key(plan));
        plan.pointer_mut(task).unwrap()["source"] = json!(source);
    });
    assert!(e.unwrap_err().to_string().contains("one bucket"));
    let e = exported_after(plan, |plan| {
        let long = "k".repeat(1000);
        let task = plan.pointer_mut(task).unwrap();
        for field in ["source", "destination"] {
            let at = format!("{}{long}", task[field].as_str().unwrap());
            task[field] = json!(at);
        }
    });
    assert!(e.unwrap_err().to_string().contains("1024"));
}

/// A field of a YAML document, by a path of names and numbers.
fn field<'y>(document: &'y Yaml, path: &str) -> &'y Yaml {
    path.split('.')
        .fold(document, |at, name| match name.parse::<usize>() {
            Ok(index) => &at[index],
            Err(_) => &at[name],
        })
}

fn strings(list: &Yaml) -> Vec<String> {
    let texts = list.as_vec().unwrap().iter();
    texts
        .map(|item| item.as_str().unwrap().to_string())
        .collect()
}

#[tokio::test]
async fn the_kubernetes_manifest_does_what_it_says() {
    let text = include_str!("../../examples/kubernetes/fork-job.yaml");
    let documents = YamlLoader::load_from_str(text).unwrap();
    let jobs: BTreeMap<&str, &Yaml> = documents
        .iter()
        .filter(|d| d["kind"].as_str() == Some("Job"))
        .map(|d| (field(d, "metadata.name").as_str().unwrap(), d))
        .collect();
    let config = documents
        .iter()
        .find(|d| d["kind"].as_str() == Some("ConfigMap"))
        .unwrap();
    let run_job = jobs["fork-run"];
    assert_eq!(
        field(run_job, "spec.completionMode").as_str(),
        Some("Indexed")
    );
    let pods = field(run_job, "spec.completions").as_i64().unwrap();

    let (_dir, root) = temp();
    let stores = local_stores();
    let snapshot = synthetic::lay(&stores, &root.join("original").unwrap(), 30, 40).await;
    let values = BTreeMap::from([
        ("SNAPSHOT", snapshot.to_string()),
        ("DESTINATION", root.join("fork").unwrap().to_string()),
        ("PLAN", root.join("plan.json").unwrap().to_string()),
    ]);
    for name in values.keys() {
        assert!(config["data"][*name].as_str().is_some(), "{name}");
    }
    let container = |job: &str| field(jobs[job], "spec.template.spec.containers.0").clone();
    let step = |job: &str, index: Option<i64>| {
        let container = container(job);
        assert_eq!(
            field(&container, "envFrom.0.configMapRef.name").as_str(),
            field(config, "metadata.name").as_str()
        );
        // Kubernetes puts the variables of the container into its arguments.
        let args: Vec<String> = strings(&container["args"])
            .into_iter()
            .map(|arg| {
                values.iter().fold(arg, |arg, (name, value)| {
                    arg.replace(&format!("$({name})"), value)
                })
            })
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = command(&args);
        command.envs(&values);
        if let Some(index) = index {
            command.env("JOB_COMPLETION_INDEX", index.to_string());
        }
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    let workers = strings(&container("fork-plan")["args"]);
    let at = workers.iter().position(|arg| arg == "--workers").unwrap() + 1;
    assert_eq!(workers[at], pods.to_string(), "as many workers as pods");
    step("fork-plan", None);
    for index in (0..pods).rev() {
        step("fork-run", Some(index));
    }
    step("fork-commit", None);
    let fork = root.join("fork/chk-7").unwrap();
    let report = verify(&stores, &fork, &Silent).await.unwrap();
    assert_eq!((report.objects, report.problems), (30, vec![]));
}
