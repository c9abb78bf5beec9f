//! Images: their names, and how they get to the engine.

use super::{
    PullPolicy,
    engine::Engine,
    errors::{Asked, classify},
};
use crate::{Progress, ProviderError};
use bollard::{
    errors::Error,
    models::{CreateImageInfo, ImageConfig},
    query_parameters::CreateImageOptions,
};
use futures::StreamExt;
use hodei_core::provider::ErrorClass;
use std::{collections::BTreeMap, fmt, time::Duration};

/// How long a pull may say nothing.
const SILENCE: Duration = Duration::from_secs(120);

/// A name becomes part of an address of the engine, so it must be one.
pub(super) fn check_name(name: &str) -> Result<(), ProviderError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && name.chars().all(plain) && !name.contains("..") && !name.contains("//") && name.len() <= 512 {
        return Ok(());
    }
    Err(ProviderError { class: ErrorClass::Image, message: format!("'{name}' is not the name of an image") })
}

impl Engine {
    /// Sees to it that the engine has the image, and says how it is configured.
    pub(super) async fn provide(
        &self,
        image: &str,
        pull: PullPolicy,
        progress: &Progress,
    ) -> Result<ImageConfig, ProviderError> {
        check_name(image)?;
        if pull == PullPolicy::Always {
            self.pull(image, progress).await?;
        }
        if let Some(config) = self.image(image).await? {
            return Ok(config);
        }
        if pull == PullPolicy::Missing {
            self.pull(image, progress).await?;
        }
        let missing =
            || ProviderError { class: ErrorClass::Image, message: format!("the engine has no image {image}") };
        self.image(image).await?.ok_or_else(missing)
    }

    async fn image(&self, image: &str) -> Result<Option<ImageConfig>, ProviderError> {
        match self.ask(Asked::Image, self.docker()?.inspect_image(image)).await {
            Ok(found) => Ok(Some(found.config.unwrap_or_default())),
            Err(error) if error.class == ErrorClass::Image => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn pull(&self, image: &str, progress: &Progress) -> Result<(), ProviderError> {
        progress(&format!("pulling {image}"));
        let (name, tag) = name_and_tag(image);
        let options = CreateImageOptions { from_image: Some(name), tag, ..CreateImageOptions::default() };
        let docker = self.docker()?;
        let mut steps = docker.create_image(Some(options), None, None);
        let mut layers = Layers::default();
        loop {
            let step = tokio::time::timeout(SILENCE, steps.next()).await;
            match step.map_err(|_| Error::RequestTimeoutError) {
                Ok(None) => break,
                Ok(Some(Ok(step))) => {
                    layers.hear(&step);
                    progress(&format!("pulling {image}{layers}"));
                }
                Ok(Some(Err(error))) | Err(error) => {
                    let error = classify(Asked::Image, &error);
                    return Err(ProviderError { message: format!("cannot pull {image}: {}", error.message), ..error });
                }
            }
        }
        progress(&format!("pulled {image}"));
        Ok(())
    }
}

/// How far a pull has come. An engine tells of one layer at a time, and people want to know of all of them.
#[derive(Default)]
struct Layers(BTreeMap<String, Layer>);

#[derive(Default)]
struct Layer {
    loaded: i64,
    size: i64,
    is_done: bool,
}

impl Layers {
    fn hear(&mut self, step: &CreateImageInfo) {
        let (Some(id), Some(status)) = (&step.id, step.status.as_deref()) else { return };
        // The tag stands in the place of a layer.
        if status.starts_with("Pulling from") {
            return;
        }
        let layer = self.0.entry(id.clone()).or_default();
        let detail = step.progress_detail.as_ref();
        match (status, detail.and_then(|detail| Some((detail.current?, detail.total?)))) {
            ("Downloading", Some((loaded, size))) => (layer.loaded, layer.size) = (loaded, size),
            ("Download complete", _) => layer.loaded = layer.size,
            ("Pull complete" | "Already exists", _) => layer.is_done = true,
            _ => {}
        }
    }
}

/// Follows the name of the image.
impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = || self.0.values();
        let (done, all) = (layers().filter(|layer| layer.is_done).count(), layers().count());
        let (loaded, size) = layers().fold((0, 0), |sum, layer| (sum.0 + layer.loaded, sum.1 + layer.size));
        let megabytes = |bytes: i64| bytes as f64 / 1e6;
        match (all, size) {
            (0, _) => Ok(()),
            (_, 0) => write!(f, ": {done} of {all} layers"),
            _ => write!(f, ": {done} of {all} layers, {:.1} of {:.1} MB", megabytes(loaded), megabytes(size)),
        }
    }
}

/// Without a tag an engine would pull all that there are.
fn name_and_tag(image: &str) -> (String, Option<String>) {
    if image.contains('@') {
        return (image.to_owned(), None);
    }
    match image.rsplit_once(':') {
        // What follows the last colon may be the port of a registry.
        Some((name, tag)) if !tag.contains('/') => (name.to_owned(), Some(tag.to_owned())),
        _ => (image.to_owned(), Some("latest".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::ProgressDetail;

    #[test]
    fn progress_is_that_of_all_layers() {
        let mut layers = Layers::default();
        let mut said = Vec::new();
        for (id, status, detail) in [
            ("1", "Pulling from a/b", None),
            ("x", "Pulling fs layer", None),
            ("y", "Already exists", None),
            ("x", "Downloading", Some((1_500_000, 4_000_000))),
            ("x", "Download complete", None),
            ("x", "Pull complete", None),
        ] {
            let progress_detail =
                detail.map(|(current, total)| ProgressDetail { current: Some(current), total: Some(total) });
            let (id, status) = (Some(id.to_owned()), Some(status.to_owned()));
            layers.hear(&CreateImageInfo { id, status, progress_detail, ..CreateImageInfo::default() });
            said.push(layers.to_string());
        }
        let expected = [
            "",
            ": 0 of 1 layers",
            ": 1 of 2 layers",
            ": 1 of 2 layers, 1.5 of 4.0 MB",
            ": 1 of 2 layers, 4.0 of 4.0 MB",
            ": 2 of 2 layers, 4.0 of 4.0 MB",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn names_are_taken_apart() {
        let tagged = |name: &str, tag: &str| (name.to_owned(), Some(tag.to_owned()));
        assert_eq!(name_and_tag("busybox"), tagged("busybox", "latest"));
        assert_eq!(name_and_tag("a/busybox:1.2"), tagged("a/busybox", "1.2"));
        assert_eq!(name_and_tag("registry:5000/busybox"), tagged("registry:5000/busybox", "latest"));
        assert_eq!(name_and_tag("busybox@sha256:00"), ("busybox@sha256:00".to_owned(), None));
    }

    #[test]
    fn a_name_cannot_lead_elsewhere_in_the_engine() {
        for name in ["busybox", "hodei-test/busybox:1", "registry:5000/a/b@sha256:0f"] {
            check_name(name).unwrap();
        }
        for name in ["", "../containers", "a/../../b", "/a", "a?b", "a b", "a#b", "a%2e", "-a"] {
            assert_eq!(check_name(name).unwrap_err().class, ErrorClass::Image, "{name}");
        }
    }
}
