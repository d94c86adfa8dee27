//! What `plan --workers` shows: a bar for each worker, what it takes, and why it is not more even.

use std::path::Path;

use crate::support::{command, local_stores, run, run_json, synthetic, temp};
use bytes::Bytes;
use quick_xml::Reader;
use quick_xml::events::Event;
use serde_json::json;

/// A snapshot of 50 small files and a large one, and a place for a fork.
async fn skewed() -> (tempfile::TempDir, String, String) {
    let (dir, root) = temp();
    let stores = local_stores();
    let snapshot = synthetic::lay(&stores, &root.join("original").unwrap(), 50, 1000).await;
    let large = root.join("original/shared/<large>&").unwrap();
    let content = Bytes::from(vec![7; 30_000_000]);
    stores.put(&large, content, true).await.unwrap();
    let mut files: Vec<(String, u64)> = (0..50)
        .map(|n| {
            (
                root.join(&format!("original/shared/file-{n:06}"))
                    .unwrap()
                    .to_string(),
                1000,
            )
        })
        .collect();
    files.push((large.to_string(), 30_000_000));
    let metadata = Bytes::from(synthetic::metadata(&files));
    stores
        .put(&snapshot.join("_metadata").unwrap(), metadata, false)
        .await
        .unwrap();
    let target = root.join("fork").unwrap().to_string();
    (dir, snapshot.to_string(), target)
}

#[tokio::test]
async fn a_bar_for_each_worker_an_estimate_and_the_reasons() {
    let (dir, source, to) = skewed().await;
    let output = run(&["plan", &source, &to, "--workers", "4"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let bars: Vec<&str> = text
        .lines()
        .filter(|line| line.contains('|') && line.contains("##"))
        .collect();
    assert_eq!(bars.len(), 4, "{text}");
    let length = |bar: &str| bar.matches('#').count();
    assert!(
        length(bars[0]) > 2 * length(bars[1]),
        "the large file is alone: {text}"
    );
    for words in [
        "51 objects",
        "102 reads",
        "51 writes",
        "ideal",
        "local-",
        "<large>& of 28.6 MiB",
    ] {
        assert!(text.contains(words), "`{words}` is not in {text}");
    }
    assert!(!text.contains("EUR"), "no prices but the user's");

    let (code, json) = run_json(&["plan", &source, &to, "--workers", "4"]);
    assert_eq!(code, 0);
    assert_eq!(json["version"], json!(1));
    assert_eq!(json["workers"].as_array().unwrap().len(), 4);
    assert_eq!(json["estimate"]["workers"].as_array().unwrap().len(), 4);
    assert_eq!(json["estimate"]["money"], json!(null));
    let reasons = json["balance"]["reasons"].as_array().unwrap();
    assert_eq!(reasons[0]["kind"], json!("large-object"));
    assert!(reasons.len() <= 3);
    assert_eq!(
        json["plan"]["tasks"].as_array().unwrap().len(),
        51,
        "not written elsewhere, so here"
    );
    assert!(
        !Path::new(&dir.path().join("fork")).exists(),
        "a plan writes nothing"
    );

    let prices = dir.path().join("prices.json");
    let price = json!({"thousand_reads": 1.0, "thousand_writes": 10.0, "gibibyte": 0.0});
    let table =
        json!({"currency": "EUR", "methods": {"local-copy": price, "local-reflink": price}});
    std::fs::write(&prices, table.to_string()).unwrap();
    let prices = prices.to_str().unwrap();
    let (_, json) = run_json(&["plan", &source, &to, "--workers", "4", "--prices", prices]);
    let money = json["estimate"]["money"].as_f64().unwrap();
    assert!(
        (money - 0.612).abs() < 1e-9,
        "102 reads and 51 writes: {money}"
    );
    std::fs::write(prices, "{}").unwrap();
    let refused = run(&["plan", &source, &to, "--workers", "4", "--prices", prices]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("prices.json"));
}

#[tokio::test]
async fn the_picture_is_whole_by_itself_and_sums_up_many_workers() {
    let (_dir, source, to) = skewed().await;
    for (workers, rows) in [("1", 1), ("4", 4), ("40", 40), ("41", 21), ("1000", 40)] {
        let args = [
            "plan",
            &source,
            &to,
            "--workers",
            workers,
            "--format",
            "svg",
        ];
        let output = command(&args).output().unwrap();
        assert!(output.status.success());
        let svg = String::from_utf8(output.stdout).unwrap();
        let mut reader = Reader::from_str(&svg);
        let (mut tracks, mut texts) = (0, Vec::new());
        loop {
            match reader.read_event().unwrap_or_else(|e| panic!("{e}: {svg}")) {
                Event::Eof => break,
                Event::Empty(element) => {
                    let class = element.try_get_attribute("class").unwrap();
                    tracks += u32::from(class.is_some_and(|c| &*c.value == b"track"));
                }
                Event::Text(text) => texts.push(text.decode().unwrap().into_owned()),
                _ => {}
            }
        }
        assert_eq!(tracks, rows, "{workers}");
        assert!(svg.contains("prefers-color-scheme:dark"));
        assert!(
            svg.contains("&lt;large&gt;&amp; of 28.6 MiB") || workers == "1",
            "{svg}"
        );
        assert!(
            !svg.contains("href") && !svg.contains("url("),
            "needs nothing from elsewhere"
        );
        assert!(!texts.is_empty());
    }
}
