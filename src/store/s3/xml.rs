//! The XML documents that S3 answers with.

use serde::Deserialize;

/// The document, if the body is one of this name. An `Error` document never is.
pub(super) fn parse<T: for<'de> Deserialize<'de>>(body: &[u8], root: &str) -> Option<T> {
    let text = std::str::from_utf8(body).ok()?.trim_start();
    // After an XML declaration, if there is one, the root element must come.
    let start = match text.starts_with("<?") {
        true => text.get(text.find("?>")? + 2..)?.trim_start(),
        false => text,
    };
    let name = start.strip_prefix('<')?;
    let end = name.find(|c: char| c == '>' || c.is_whitespace())?;
    if name.get(..end)? != root {
        return None;
    }
    quick_xml::de::from_str(start).ok()
}

/// The answer to CopyObject and to UploadPartCopy.
#[derive(Debug, Deserialize)]
pub(super) struct CopyResult {
    #[serde(rename = "ETag")]
    pub(super) e_tag: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct InitiateMultipartUploadResult {
    #[serde(rename = "UploadId")]
    pub(super) upload_id: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct CompleteMultipartUploadResult {
    #[serde(rename = "ETag")]
    pub(super) e_tag: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListPartsResult {
    #[serde(default)]
    pub(super) is_truncated: bool,
    pub(super) next_part_number_marker: Option<u32>,
    #[serde(default, rename = "Part")]
    pub(super) parts: Vec<ListedPart>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ListedPart {
    #[serde(rename = "PartNumber")]
    pub(super) number: u32,
    #[serde(rename = "ETag")]
    pub(super) e_tag: String,
    #[serde(rename = "Size")]
    pub(super) size: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListMultipartUploadsResult {
    #[serde(default)]
    pub(super) is_truncated: bool,
    pub(super) next_key_marker: Option<String>,
    pub(super) next_upload_id_marker: Option<String>,
    #[serde(default, rename = "Upload")]
    pub(super) uploads: Vec<OpenUpload>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct OpenUpload {
    pub(super) key: String,
    pub(super) upload_id: String,
    pub(super) initiated: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListBucketResult {
    #[serde(default)]
    pub(super) is_truncated: bool,
    pub(super) next_continuation_token: Option<String>,
    pub(super) encoding_type: Option<String>,
    #[serde(default, rename = "Contents")]
    pub(super) contents: Vec<ListedObject>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListedObject {
    pub(super) key: String,
    pub(super) size: u64,
    #[serde(rename = "ETag")]
    pub(super) e_tag: Option<String>,
    pub(super) storage_class: Option<String>,
    pub(super) last_modified: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Tagging {
    #[serde(rename = "TagSet", default)]
    pub(super) tags: TagSet,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct TagSet {
    #[serde(default, rename = "Tag")]
    pub(super) tags: Vec<Tag>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Tag {
    pub(super) key: String,
    pub(super) value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_document_that_was_asked_for_counts() {
        let tag = |body: &[u8]| parse::<CopyResult>(body, "CopyObjectResult").map(|r| r.e_tag);
        let result = b"<?xml version=\"1.0\"?>\n<CopyObjectResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LastModified>x</LastModified><ETag>&quot;abc&quot;</ETag></CopyObjectResult>";
        assert_eq!(tag(result).as_deref(), Some("\"abc\""));
        // S3 keeps a slow copy's connection alive with blanks before the document.
        assert!(tag(b"   \n <CopyObjectResult><ETag>x</ETag></CopyObjectResult>").is_some());
        for body in [
            &b"<Error><Code>AccessDenied</Code></Error>"[..],
            b"",
            b"<CopyObjectResult>",
            b"<Error><Code><CopyObjectResult><ETag>x</ETag></CopyObjectResult></Code></Error>",
        ] {
            assert_eq!(tag(body), None);
        }
    }

    #[test]
    fn lists_of_parts_may_be_empty() {
        let body = b"<ListPartsResult><IsTruncated>false</IsTruncated></ListPartsResult>";
        let listed: ListPartsResult = parse(body, "ListPartsResult").unwrap();
        assert!(listed.parts.is_empty());
    }
}
