"""The admission webhook: AdmissionReview in, patch or verdict out."""
