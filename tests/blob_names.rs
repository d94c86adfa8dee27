//! Names and layouts: what is printed is read back, and nothing else is.

// Helpers of tests fail by panicking, like the tests themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use forkpoint::blob::{
    Class, Digest, Digester, DisplayName, JobId, LocalPath, ObjectName, SessionId, StorePath,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn digest() -> Digest {
    Digest::of(b"abc")
}

fn store_paths() -> Vec<StorePath> {
    let job = JobId::parse("ca3136b6d378bc858d567bb5adc77912").unwrap();
    let name = ObjectName {
        digest: digest(),
        epoch: 12,
        random: 0xabc,
    };
    vec![
        StorePath::Format,
        StorePath::Epoch(0),
        StorePath::Epoch(u64::MAX),
        StorePath::Manifest(job.clone(), 7),
        StorePath::Object(job.clone(), Class::Retained, name),
        StorePath::Object(job, Class::Recreatable, name),
    ]
}

fn local_paths() -> Vec<LocalPath> {
    let job = JobId::parse("application_1700000000_0001").unwrap();
    vec![
        LocalPath::Lock,
        LocalPath::Version,
        LocalPath::Part(9),
        LocalPath::Blob(job, digest()),
        LocalPath::Trash(u64::MAX),
        LocalPath::Quarantine(digest().sha256, 1_700_000_000_000),
        LocalPath::HaFolders,
    ]
}

#[test]
fn layouts_are_as_documented() {
    let sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let printed: Vec<String> = store_paths().iter().map(ToString::to_string).collect();
    assert_eq!(printed[2], "epoch/18446744073709551615.json");
    assert_eq!(
        printed[3],
        "jobs/ca3136b6d378bc858d567bb5adc77912/manifest/00000000000000000007.json"
    );
    assert_eq!(
        printed[4],
        format!("jobs/ca3136b6d378bc858d567bb5adc77912/retained/{sha}-3.12-0000000000000abc")
    );
    assert_eq!(
        local_paths()[3].to_string(),
        format!("jobs/application_1700000000_0001/ba/{sha}-3")
    );
}

#[test]
fn what_is_printed_is_read_back() {
    for path in store_paths() {
        assert_eq!(StorePath::parse(&path.to_string()).unwrap(), path);
    }
    for path in local_paths() {
        assert_eq!(LocalPath::parse(&path.to_string()).unwrap(), path);
    }
    let json = serde_json::to_string(&digest()).unwrap();
    assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest());
}

#[test]
fn hostile_names_are_refused() {
    let sha = digest().hex();
    let hostile = [
        "",
        ".",
        "..",
        "/",
        "//",
        "../x",
        "x/..",
        "/etc/passwd",
        "\\etc\\passwd",
        "C:\\x",
        "c:x",
        "%2e%2e",
        "%2e%2e%2f",
        "..%2f",
        "..%5c",
        "%252e%252e",
        "..;/",
        "....//",
        "\u{2024}\u{2024}",
        "\u{ff0e}\u{ff0e}",
        "\u{2215}",
        "\u{202e}",
        "a\0b",
        "a\nb",
        "a b",
        "a/b",
        "a\\b",
        "a.b",
        "-a",
        "_a",
        "A",
        "\u{e9}",
        "e\u{301}",
        "\u{430}",
        "~",
        "~root",
        "$HOME",
        "`id`",
        "*",
        "?",
        "a:b",
        "con.",
        "a\u{200b}",
        "a\u{feff}",
        "\u{c0}\u{af}",
        "file:///x",
        "s3://b/k",
    ];
    let long = "a".repeat(129);
    for text in hostile.into_iter().chain([long.as_str()]) {
        assert!(JobId::parse(text).is_err(), "{text:?}");
        assert!(Digest::parse(text).is_err(), "{text:?}");
        assert!(ObjectName::parse(text).is_err(), "{text:?}");
        assert!(SessionId::parse(text).is_err(), "{text:?}");
        assert!(StorePath::parse(text).is_err(), "{text:?}");
        assert!(LocalPath::parse(text).is_err(), "{text:?}");
        for template in [
            "jobs/{}/manifest/00000000000000000007.json",
            "epoch/{}",
            "epoch/{}.json",
        ] {
            assert!(
                StorePath::parse(&template.replace("{}", text)).is_err(),
                "{text:?}"
            );
        }
        for template in [
            format!("jobs/{{}}/ba/{sha}-3"),
            "jobs/j/ba/{}".to_string(),
            format!("jobs/j/{{}}/{sha}-3"),
            "tmp/{}".to_string(),
            "trash/{}".to_string(),
            "quarantine/{}".to_string(),
            format!("quarantine/{sha}.{{}}"),
        ] {
            assert!(
                LocalPath::parse(&template.replace("{}", text)).is_err(),
                "{text:?}"
            );
        }
    }
    for text in [
        format!("{sha}-03"),
        format!("{sha}-+3"),
        format!("{sha}-"),
        format!("{sha}--3"),
        format!("{}-3", sha.to_uppercase()),
        format!("{sha}0-3"),
        format!("{sha}-18446744073709551616"),
        format!("{sha}-3 "),
    ] {
        assert!(Digest::parse(&text).is_err(), "{text:?}");
    }
    let other_folder = format!("jobs/j/00/{sha}-3");
    assert!(LocalPath::parse(&other_folder).is_err());
    assert!(StorePath::parse("epoch/7.json").is_err());
    assert!(StorePath::parse("epoch/+0000000000000000007.json").is_err());
    assert!(DisplayName::parse("job.jar").is_ok() && DisplayName::parse("a\u{7}").is_err());
}

#[test]
fn an_error_names_the_text_and_the_next_step_on_one_line() {
    let e = JobId::parse("../\u{1b}[31m").unwrap_err();
    assert!(!e.to_string().contains('\u{1b}') && e.next_step().is_some());
    let e = StorePath::parse(&"x".repeat(10_000)).unwrap_err();
    assert!(e.to_string().len() < 200);
}

#[test]
fn a_mutated_name_is_refused_or_prints_as_itself() {
    let mut random = StdRng::seed_from_u64(3);
    let names: Vec<String> = store_paths()
        .iter()
        .map(ToString::to_string)
        .chain(local_paths().iter().map(ToString::to_string))
        .collect();
    let parts = [
        ".", "..", "/", "%2f", "0", "a", "A", "-", "+", " ", "\0", "\u{e9}", "json",
    ];
    let mut taken = 0;
    for _ in 0..40_000 {
        let mut text: Vec<char> = names[random.random_range(0..names.len())].chars().collect();
        for _ in 0..random.random_range(1..3) {
            let at = random.random_range(0..=text.len());
            let end = (at + random.random_range(0..3)).min(text.len());
            let part = parts[random.random_range(0..parts.len())];
            text.splice(at..end, part.chars());
        }
        let text: String = text.into_iter().collect();
        if let Ok(path) = StorePath::parse(&text) {
            assert_eq!(path.to_string(), text);
            assert!(!text.contains(".."));
            taken += 1;
        }
        if let Ok(path) = LocalPath::parse(&text) {
            assert_eq!(path.to_string(), text);
            assert!(!text.contains(".."));
            taken += 1;
        }
    }
    assert!(taken > 100, "{taken}");
}

#[test]
fn a_digest_of_pieces_is_that_of_the_whole() {
    let mut digester = Digester::default();
    for piece in [&b"a"[..], b"", b"bc"] {
        digester.update(piece);
    }
    assert_eq!(digester.finish(), digest());
    assert!(Digest::of(b"").is_empty_blob() && !digest().is_empty_blob());
}
