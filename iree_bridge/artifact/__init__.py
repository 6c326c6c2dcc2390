"""Compiled graphs in one file that needs no compiler, with test vectors that show it computes the same elsewhere."""

from iree_bridge.artifact.artifact import Artifact, ArtifactError

__all__ = ["Artifact", "ArtifactError"]
